#define TERRACE_ISA avx512
#include <terrace/bench/stream_kernels.inl>
