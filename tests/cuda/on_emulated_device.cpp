// Linked into a program of math tests, this runs them on the emulated device.
#include <terrace/tests/math/math_fixture.h>

#include "emulated_device.h"

namespace terrace::test {
namespace {
[[maybe_unused]] const bool chosen = (make_test_device = &make_emulated_device, true);
}
}  // namespace terrace::test
