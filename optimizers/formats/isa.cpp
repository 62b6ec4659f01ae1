#include <terrace/optimizers/formats/isa.h>

#include <algorithm>

namespace terrace::rules {

// Not an ifunc: its resolver runs before the sanitizers, which instrument it, are ready.
bool runs(Isa isa) {
  if (isa == Isa::baseline) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool vbmi = avx512 && __builtin_cpu_supports("avx512vbmi");
  return isa == Isa::avx512 ? avx512 : isa == Isa::avx512vbmi ? vbmi : vbmi && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

Isa best_isa() { return *std::find_if(kAllIsas.rbegin(), kAllIsas.rend(), runs); }

}  // namespace terrace::rules
