#include <terrace/core/math/cpu/kernels.h>

namespace terrace::cpu {

const Kernels& select_kernels() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return kKernelsAvx512;
  }
  return __builtin_cpu_supports("avx2") ? kKernelsAvx2 : kKernelsBaseline;
}

}  // namespace terrace::cpu
