// Block-wise dynamic 8-bit quantisation (Dettmers et al.: "8-bit optimizers via block-wise quantization", ICLR 2022), with the
// code values of bitsandbytes' create_dynamic_map. docs/internals/optimizers.md, "Formats", specifies it to the bit.
//
// A block of 256 elements shares one fp32 scale, its greatest magnitude (at least the smallest normal number). An array of n
// elements is the codes of all blocks, padded to whole blocks, then one scale per block.
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <cstdint>

#include <terrace/memory/chunk.h>
#include <terrace/optimizers/formats/format.h>
#include <terrace/optimizers/formats/isa.h>

namespace terrace::rules::dynamic8 {

inline constexpr std::int64_t kBlockElements = 256;
constexpr std::int64_t blocks_of(std::int64_t elements) { return (elements + kBlockElements - 1) / kBlockElements; }
constexpr std::int64_t bytes_of(std::int64_t elements) { return blocks_of(elements) * (kBlockElements + 4); }

// The first moment's map has both signs. The second moment's has none, and encodes no nonzero number as zero.
enum class Sign : bool { both, none };
constexpr Sign sign_of(ChunkKind moment) { return moment == ChunkKind::first_moment ? Sign::both : Sign::none; }
constexpr Format format_of(Sign sign) { return sign == Sign::both ? Format::dynamic8 : Format::dynamic8_unsigned; }
struct Map;  // dynamic8_map.h
const Map& map_of(Sign sign);

// Both process whole blocks. `codes` and `scales` are those of the first block.
void decode(Isa isa, Sign sign, float* to, const std::uint8_t* codes, const float* scales, std::int64_t blocks);
void encode(Isa isa, Sign sign, std::uint8_t* codes, float* scales, const float* from, std::int64_t blocks);

}  // namespace terrace::rules::dynamic8
