// Content for memory that is only timed: normal numbers, as fp32 and as pairs of bf16. Zeros would flatter the clock rate,
// subnormals would slow the arithmetic.
//
// Owner: none. Threads: any. Errors: of the device's copies.
#pragma once

#include <cstddef>
#include <span>

#include <terrace/core/device.h>

namespace terrace {

// `memory`: the device's own, or its host_memory(). Returns when it is filled; takes a few MiB meanwhile, whatever its size.
void fill_with_typical_numbers(Device& device, std::span<std::byte> memory);

}  // namespace terrace
