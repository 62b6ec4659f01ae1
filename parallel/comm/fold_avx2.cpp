// Folding loops for AVX2. Compiled with its own options; see parallel/comm/CMakeLists.txt.
#include <terrace/parallel/comm/fold_kernels.h>

#include <terrace/parallel/comm/fold_kernels.inl>

namespace terrace::comm::folding {

constinit const Kernels kKernelsAvx2 = make_kernels("avx2");

}  // namespace terrace::comm::folding
