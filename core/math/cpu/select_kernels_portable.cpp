#include <terrace/core/math/cpu/kernels.h>

namespace terrace::cpu {

const Kernels& select_kernels() { return kKernelsBaseline; }

}  // namespace terrace::cpu
