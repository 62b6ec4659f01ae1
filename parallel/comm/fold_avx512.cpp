// Folding loops for AVX-512. Compiled with its own options; see parallel/comm/CMakeLists.txt.
#include <terrace/parallel/comm/fold_kernels.h>

#include <terrace/parallel/comm/fold_kernels.inl>

namespace terrace::comm::folding {

constinit const Kernels kKernelsAvx512 = make_kernels("avx512");

}  // namespace terrace::comm::folding
