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

// Up with the probability of the part that is cut off: its 16 bits plus 16 random ones carry that often.
TERRACE_INLINE std::uint16_t stochastic_to_bf16(float value, std::uint32_t random_half) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  return half_of(u, (u + random_half) >> 16);
}

// A weight of which the parameter is the upper half: it was rounded away from zero exactly when the lower half's first bit is
// set. A NaN's was not rounded.
TERRACE_INLINE float joined(std::uint16_t high, std::uint16_t low) {
  const std::uint32_t h = high, l = low;
  const std::uint32_t truncated = is_nan(h << 16) ? h : h - (l >> 15);
  return std::bit_cast<float>((truncated << 16) | l);
}
TERRACE_INLINE std::uint16_t lower_half(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) & 0xffffU);
}

}  // namespace terrace
