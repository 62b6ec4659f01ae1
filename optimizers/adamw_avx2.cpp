// AdamW's loops for AVX2. Compiled with its own options; see optimizers/CMakeLists.txt.
#include <terrace/optimizers/adamw_kernels.h>

#include <terrace/optimizers/adamw_kernels.inl>

namespace terrace::adamw {

constinit const Kernels kKernelsAvx2 = make_kernels("avx2");

}  // namespace terrace::adamw
