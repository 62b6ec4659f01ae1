// Linked into a program of math tests, this runs them on the test's GPU.
#include <terrace/tests/support/program_device.h>

#include "test_gpu.h"

namespace terrace::test {
namespace {
[[maybe_unused]] const bool chosen = (make_test_device = &make_test_gpu, true);
}
}  // namespace terrace::test
