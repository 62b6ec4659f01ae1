// The kernel tables that this processor runs, the baseline first.
#pragma once

#include <vector>

#include <terrace/core/math/cpu/kernels.h>

namespace terrace::test {

std::vector<const cpu::Kernels*> kernel_tables();

}  // namespace terrace::test
