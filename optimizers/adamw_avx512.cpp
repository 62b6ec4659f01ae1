// AdamW's loops for AVX-512. Compiled with its own options; see optimizers/CMakeLists.txt.
#include <terrace/optimizers/adamw_kernels.h>

#include <terrace/optimizers/adamw_kernels.inl>

namespace terrace::adamw {

constinit const Kernels kKernelsAvx512 = make_kernels("avx512");

}  // namespace terrace::adamw
