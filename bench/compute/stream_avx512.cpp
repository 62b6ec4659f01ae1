#define TERRACE_ISA avx512
#include <terrace/bench/compute/stream_kernels.inl>
