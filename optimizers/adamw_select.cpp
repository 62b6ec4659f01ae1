#include <terrace/optimizers/adamw_kernels.h>

namespace terrace::adamw {

const Kernels* kernels_if_supported(int table) {
  // A table of pointers and not an ifunc: sanitizers instrument resolvers, which run before they are ready.
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

const Kernels& select_kernels() {
  for (int table = kKernelTables - 1; table > 0; --table) {
    if (const Kernels* kernels = kernels_if_supported(table)) return *kernels;
  }
  return kKernelsBaseline;
}

}  // namespace terrace::adamw
