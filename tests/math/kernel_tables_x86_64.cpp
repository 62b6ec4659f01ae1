#include <terrace/tests/math/kernel_tables.h>

namespace terrace::test {

std::vector<const cpu::Kernels*> kernel_tables() {
  std::vector<const cpu::Kernels*> t{&cpu::kKernelsBaseline};
  if (__builtin_cpu_supports("avx2")) t.push_back(&cpu::kKernelsAvx2);
  if (&cpu::select_kernels() == &cpu::kKernelsAvx512) t.push_back(&cpu::kKernelsAvx512);
  return t;
}

}  // namespace terrace::test
