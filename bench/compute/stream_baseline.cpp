#define TERRACE_ISA baseline
#include <terrace/bench/compute/stream_kernels.inl>
