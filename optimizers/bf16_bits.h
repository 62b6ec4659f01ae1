// bf16 as its bits, inside loops that are compiled for each instruction set: they call nothing that is not inlined.
//
// Internal to optimizers/.
#pragma once

#include <bit>
#include <cstdint>

#include <terrace/optimizers/each_isa.h>

namespace terrace {

TERRACE_INLINE bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffffU) > 0x7f800000U; }
// `rounded` where it is a number: chosen among halves, which is what vector units do best.
TERRACE_INLINE std::uint16_t half_of(std::uint32_t bits, std::uint32_t rounded) {
  const auto quiet = static_cast<std::uint16_t>((bits >> 16) | 0x40U), number = static_cast<std::uint16_t>(rounded);
  return is_nan(bits) ? quiet : number;
}

TERRACE_INLINE float widened(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// Of a weight: to nearest, a tie to the greater magnitude. So the 16 bits that are cut off tell which neighbour was taken, and
// a split master weight loses nothing.
TERRACE_INLINE std::uint16_t weight_to_bf16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  return half_of(u, (u + 0x8000U) >> 16);
}
// Of a state: to nearest, a tie to even.
TERRACE_INLINE std::uint16_t state_to_bf16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  return half_of(u, (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}

}  // namespace terrace
