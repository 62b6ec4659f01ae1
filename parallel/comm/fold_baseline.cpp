// Folding loops for any x86-64 (and other processors). Compiled with its own options; see parallel/comm/CMakeLists.txt.
#include <terrace/parallel/comm/fold_kernels.h>

#include <terrace/parallel/comm/fold_kernels.inl>

namespace terrace::comm::folding {

constinit const Kernels kKernelsBaseline = make_kernels("baseline");

}  // namespace terrace::comm::folding
