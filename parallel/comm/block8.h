// Numbers in 8 bits: blocks of 256 elements, each an fp32 scale and 256 signed codes, one behind the other (260 bytes).
//
//   scale = m ÷ 127,  code = x · (127 ÷ m) to the nearest even,  x ≈ code · scale         with m the block's greatest magnitude
//   |code · scale − x| ≤ m ÷ 254, beside the rounding of fp32
//
// Where m is below 2⁻¹¹⁹ everything is zero; where an element is not finite, or of 2¹²⁷ and more, the scale is NaN, and so is
// the whole block. What is bf16 is widened first and rounded to nearest at the end. A Reduction over such blocks adds code ·
// scale in rank order.
//
// Threads: any; one call computes alone on its thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/core/dtype.h>

namespace terrace {

inline constexpr std::int64_t kBlock8Elements = 256;
inline constexpr std::size_t kBlock8Bytes = 260;

// fp32 and bf16. `to` may begin where `from` does, and else not overlap it.
void pack_block8(std::byte* to, DType dtype, const std::byte* from, std::int64_t blocks);
// The packed blocks may be the last bytes of where they are unpacked to.
void unpack_block8(DType dtype, std::byte* to, const std::byte* from, std::int64_t blocks);

}  // namespace terrace
