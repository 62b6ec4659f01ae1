// Content for benchmark memory: numbers that are normal as fp32 and as pairs of bf16. Zeros would raise the clock rate,
// subnormals would slow down the arithmetic.
//
// Owner: none. Threads: any. Errors: of the device's copies.
#pragma once

#include <cstddef>
#include <span>

#include <terrace/core/device.h>

namespace terrace {

// `memory`: the device's own, or its host_memory(). Returns when it is filled; needs a few MiB meanwhile, for any size.
void fill_with_typical_numbers(Device& device, std::span<std::byte> memory);

}  // namespace terrace
