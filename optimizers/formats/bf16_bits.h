// bf16 (and a weight's fp16) as bits, for kernels and for loops that are compiled for each instruction set: all functions are
// inlined.
//
// Internal to optimizers/.
#pragma once

#include <bit>
#include <cstdint>

#include <terrace/core/math/fp16_bits.h>
#include <terrace/optimizers/formats/each_isa.h>

namespace terrace::rules {

// Which NaNs the numbers to round may include: any; quiet ones, as operations return; or only those that rounding keeps NaNs.
enum class Nans : std::uint8_t { any, quiet, round };

// Rounds one number, or several side by side. `Ops` has the type Bits, is_nan(), and which NaNs may occur. Rounded numbers are
// in the upper half of the result; the lower half has no meaning. The constants are members so that a loop can keep them in
// registers.
template <class Ops>
struct HalfBits {
  using Bits = typename Ops::Bits;
  Bits upper, lower, upper24, quiet, half, below_half, one, infinity;

  // `all(value)` returns Bits with the value in every place.
  template <class All>
  TERRACE_INLINE static HalfBits of(const All& all) {
    return {all(0xffff0000U), all(0xffffU), all(0xffffff00U), all(0x400000U),
            all(0x8000U),     all(0x7fffU), all(1U),          all(0x7f80U)};
  }

  [[nodiscard]] TERRACE_INLINE Bits quiet_or(Bits bits, Bits rounded) const {
    if constexpr (Ops::kNans == Nans::round) return rounded;
    if constexpr (Ops::kNans == Nans::quiet) return Ops::is_nan(bits) ? bits : rounded;
    return Ops::is_nan(bits) ? bits | quiet : rounded;
  }
  // Rounds a weight to nearest, ties to the greater magnitude. So the 16 bits that are cut off tell which neighbour was taken,
  // and a split master weight loses nothing.
  [[nodiscard]] TERRACE_INLINE Bits weight(Bits bits) const { return quiet_or(bits, bits + half); }
  // Rounds a state to nearest, ties to even.
  [[nodiscard]] TERRACE_INLINE Bits state(Bits bits) const { return quiet_or(bits, bits + below_half + ((bits >> 16) & one)); }
  // Rounds up with the probability of the part that is cut off: its 16 bits plus 16 random ones carry that often.
  [[nodiscard]] TERRACE_INLINE Bits stochastic(Bits bits, Bits random_half) const { return quiet_or(bits, bits + random_half); }
  // Rounds to 24 bits in the same way, with the 8 bits that are cut off and 8 random ones; the upper 16 bits are the bf16
  // weight.
  [[nodiscard]] TERRACE_INLINE Bits to_24(Bits bits, Bits random_byte) const {
    return quiet_or(bits, bits + random_byte) & upper24;
  }
  // The weight from its parameter `high` (lower half zero) and its lower half `low`. The parameter was rounded away from zero
  // exactly when the first bit of `low` is set; a NaN was not rounded.
  [[nodiscard]] TERRACE_INLINE Bits joined(Bits high, Bits low) const {
    return (Ops::is_nan(high) ? high : high - ((low & half) << 1)) | low;
  }
};

// The same for single numbers.
struct OneNumber {
  using Bits = std::uint32_t;
  static constexpr auto kNans = Nans::any;
  TERRACE_INLINE static bool is_nan(Bits bits) { return (bits & 0x7fffffffU) > 0x7f800000U; }
  TERRACE_INLINE static HalfBits<OneNumber> halves() {
    return HalfBits<OneNumber>::of([](std::uint32_t value) { return value; });
  }
};
TERRACE_INLINE std::uint16_t upper_half(std::uint32_t bits) { return static_cast<std::uint16_t>(bits >> 16); }
TERRACE_INLINE std::uint16_t lower_half(float value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) & 0xffffU);
}
TERRACE_INLINE float widened(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
TERRACE_INLINE std::uint16_t weight_to_bf16(float value) {
  return upper_half(OneNumber::halves().weight(std::bit_cast<std::uint32_t>(value)));
}
TERRACE_INLINE std::uint16_t weight_to_fp16(float value) {
  return static_cast<std::uint16_t>(fp16_bits::rounded<std::uint32_t>(value));
}
TERRACE_INLINE std::uint16_t state_to_bf16(float value) {
  return upper_half(OneNumber::halves().state(std::bit_cast<std::uint32_t>(value)));
}
TERRACE_INLINE std::uint16_t stochastic_to_bf16(float value, std::uint32_t random_half) {
  return upper_half(OneNumber::halves().stochastic(std::bit_cast<std::uint32_t>(value), random_half));
}
// Added before a weight is cut to 24 bits: half a unit, or a random byte.
constexpr std::uint32_t kNearest24 = 0x80;
TERRACE_INLINE std::uint32_t random_byte(std::uint32_t random_half) { return random_half >> 8; }
TERRACE_INLINE float weight_to_24(float value, std::uint32_t added) {
  return std::bit_cast<float>(OneNumber::halves().to_24(std::bit_cast<std::uint32_t>(value), added));
}
TERRACE_INLINE std::uint8_t low_byte(float weight24) { return static_cast<std::uint8_t>(lower_half(weight24) >> 8); }
TERRACE_INLINE float joined(std::uint16_t high, std::uint16_t low) {
  return std::bit_cast<float>(OneNumber::halves().joined(static_cast<std::uint32_t>(high) << 16, low));
}
TERRACE_INLINE float joined24(std::uint16_t high, std::uint8_t low) {
  return joined(high, static_cast<std::uint16_t>(low << 8));
}

}  // namespace terrace::rules
