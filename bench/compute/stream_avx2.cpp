#define TERRACE_ISA avx2
#include <terrace/bench/compute/stream_kernels.inl>
