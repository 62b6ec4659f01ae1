// Numbers in 8 bits: blocks of 256 elements, each an fp32 scale followed by 256 signed codes (260 bytes).
//
//   scale = m ÷ 127,  code = x · (127 ÷ m) to the nearest even,  x ≈ code · scale         with m the block's greatest magnitude
//   |code · scale − x| ≤ m ÷ 254, plus the rounding of fp32
//
// If m is below 2⁻¹¹⁹, all codes are zero. If an element is not finite, or its magnitude is 2¹²⁷ or more, the scale is NaN,
// and so is the whole block. bf16 is widened before packing and rounded to nearest after unpacking. A Reduction over such
// blocks adds code · scale in rank order.
//
// Threads: any; one call computes alone on its thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <terrace/core/math/dtype.h>

namespace terrace::math {

inline constexpr std::int64_t kBlock8Elements = 256;
inline constexpr std::size_t kBlock8Bytes = 260;
inline constexpr std::int64_t kBlock8Words = 65;  // the same in words of 4 bytes

// Computed from a block's greatest magnitude; a GPU computes it in the same way. `factor` is 0 if all codes are zero.
struct Block8Scale {
  float scale = 0, factor = 0;
};
constexpr Block8Scale block8_scale(std::uint32_t greatest_magnitude_bits) {
  constexpr std::uint32_t kTooLarge = 0x7f000000;  // from 2¹²⁷ on, 127 · (m ÷ 127) may be infinite
  constexpr float kSmallest = 0x1p-119F;           // below this, 127 ÷ m would be infinite or the scale not normal
  if (greatest_magnitude_bits >= kTooLarge) return {.scale = std::numeric_limits<float>::quiet_NaN()};
  const auto m = std::bit_cast<float>(greatest_magnitude_bits);
  if (m < kSmallest) return {};
  return {.scale = m / 127, .factor = 127 / m};
}
// The code of x, in a block with this factor.
constexpr std::int8_t block8_code(float x, float factor) {
  constexpr float kToNearest = 0x1.8p23F;  // adding and subtracting it rounds to an integer, ties to even
  return static_cast<std::int8_t>(static_cast<std::int32_t>((x * factor + kToNearest) - kToNearest));
}
// The number that a code stands for. A NaN scale is returned as it is: a product would give the NaN of the processor, and a GPU
// has another one.
constexpr float block8_value(std::int8_t code, float scale) {
  return scale != scale ? scale : static_cast<float>(code) * scale;
}

// fp32 and bf16. `to` may begin where `from` begins, and must not overlap it otherwise.
void pack_block8(std::byte* to, DType dtype, const std::byte* from, std::int64_t blocks);
// The packed blocks may be the last bytes of `to`.
void unpack_block8(DType dtype, std::byte* to, const std::byte* from, std::int64_t blocks);

}  // namespace terrace::math
