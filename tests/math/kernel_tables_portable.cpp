#include <terrace/tests/math/kernel_tables.h>

namespace terrace::test {

std::vector<const cpu::Kernels*> kernel_tables() { return {&cpu::kKernelsBaseline}; }

}  // namespace terrace::test
