// Contributions to a sum with fewer bits: they are sent as bf16 and added in fp32.
//
// |narrow(x) − x| ≤ 2⁻⁸ · |x|     round to nearest even: half a unit in the last of 8 bits; infinities and NaNs stay
//
// So a sum of narrowed numbers is off by at most 2⁻⁸ of the sum of magnitudes, plus the rounding of fp32.
//
// Threads: any; one call computes alone on its thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::math {

// In place: element i of the `count` fp32 numbers becomes the bf16 at byte 2 · i.
void narrow_in_place(std::byte* numbers, std::int64_t count);

}  // namespace terrace::math
