#define TERRACE_ISA avx2
#include <terrace/bench/stream_kernels.inl>
