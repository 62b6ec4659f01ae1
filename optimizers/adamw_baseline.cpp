// AdamW's loops for any x86-64 (and other processors). Compiled with its own options; see optimizers/CMakeLists.txt.
#include <terrace/optimizers/adamw_kernels.h>

#include <terrace/optimizers/adamw_kernels.inl>

namespace terrace::adamw {

constinit const Kernels kKernelsBaseline = make_kernels("baseline");

}  // namespace terrace::adamw
