#include <terrace/parallel/comm/fold_kernels.h>

namespace terrace::comm::folding {

const Kernels* kernels_if_supported(int table) {
  // Not an ifunc: its resolver runs before the sanitizers, which instrument it, are ready.
  __builtin_cpu_init();
  switch (table) {
    case 0: return &kKernelsBaseline;
    case 1: return __builtin_cpu_supports("avx2") ? &kKernelsAvx2 : nullptr;
    case 2:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                     __builtin_cpu_supports("avx512vl")
                 ? &kKernelsAvx512
                 : nullptr;
    default: return nullptr;
  }
}

}  // namespace terrace::comm::folding
