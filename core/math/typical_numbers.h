// Fills benchmark memory with numbers that are normal as fp32 and as pairs of bf16. Zeros would raise the clock rate, and
// subnormals would slow the arithmetic down.
//
// Owner: none. Threads: any. Errors: those of the device's copies.
#pragma once

#include <cstddef>
#include <span>

#include <terrace/core/device/device.h>

namespace terrace::math {

// `memory`: the device's own, or its host_memory(). Returns when the memory is filled; needs a few MiB of additional memory,
// whatever the size.
void fill_with_typical_numbers(Device& device, std::span<std::byte> memory);

}  // namespace terrace::math
