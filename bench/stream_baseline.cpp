#define TERRACE_ISA baseline
#include <terrace/bench/stream_kernels.inl>
