// The codes of 8-bit states: their values, and the look-up of the nearest one (dynamic8.h).
//
// A normalised magnitude x in [0, 1] is looked up by the upper 16 bits of its fp32. Numbers with the same upper bits have at
// most one boundary between codes among them. The entry plus the lower 16 bits of x has the rank in its upper half: the sum
// carries where the next rank begins.
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <terrace/optimizers/formats/dynamic8.h>
#include <terrace/optimizers/formats/each_isa.h>

namespace terrace::rules::dynamic8 {

inline constexpr std::int32_t kFirst = 0x3400, kLast = 0x3f80;  // 2^-23, below every boundary, and 1

struct Map {
  float values[256] = {};
  std::int32_t steps[kLast - kFirst + 1] = {};
};

// Magnitudes in ascending order: 0; then for each decade from 1e-6 on the midpoints of an even split of [0.1, 1], twice as many
// as for the decade before, starting with one (two without a sign); then 1.
template <Sign kSign>
constexpr auto make_magnitudes() {
  std::array<float, kSign == Sign::both ? 129 : 256> all{};
  constexpr double decades[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  std::size_t at = 1;
  for (std::size_t i = 0; i < 7; ++i) {
    const std::size_t count = std::size_t{kSign == Sign::both ? 1U : 2U} << i;
    for (std::size_t j = 0; j < count; ++j)
      all[at++] = static_cast<float>(decades[i] * (0.1 + 0.9 * (static_cast<double>(j) + 0.5) / static_cast<double>(count)));
  }
  all[at] = 1.0F;
  return all;
}

// The boundaries between ranks: the bits of the first fp32 above the middle between two magnitudes. A tie goes to the smaller
// one.
template <Sign kSign>
constexpr auto make_boundaries() {
  constexpr auto magnitudes = make_magnitudes<kSign>();
  std::array<std::uint32_t, magnitudes.size() - 1> all{};
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const double middle = (static_cast<double>(magnitudes[rank]) + static_cast<double>(magnitudes[rank + 1])) / 2;
    const auto nearest = static_cast<float>(middle);
    all[rank] = std::bit_cast<std::uint32_t>(nearest) + (static_cast<double>(nearest) <= middle ? 1 : 0);
  }
  return all;
}

template <Sign kSign>
constexpr Map make_map() {
  constexpr auto magnitudes = make_magnitudes<kSign>();
  constexpr auto boundaries = make_boundaries<kSign>();
  Map map;
  for (std::size_t i = 0; i < 256; ++i) {
    if (kSign == Sign::none)
      map.values[i] = magnitudes[i];
    else
      map.values[i] = i < 127 ? -magnitudes[127 - i] : magnitudes[i - 127];
  }
  std::size_t rank = 0;
  for (std::int32_t i = 0; i <= kLast - kFirst; ++i) {
    const std::uint32_t next = rank == boundaries.size() ? ~0U : boundaries[rank];
    const bool here = next >> 16 == static_cast<std::uint32_t>(kFirst + i);
    map.steps[i] = static_cast<std::int32_t>(rank << 16) + (here ? 0x10000 - static_cast<std::int32_t>(next & 0xffffU) : 0);
    if (here) ++rank;
  }
  return map;
}

// The index of x in Map::steps; rank_of() makes its rank from the entry.
TERRACE_INLINE std::int32_t interval_of(std::int32_t x) {
  const std::int32_t upper = (x >> 16) - kFirst;
  return upper < 0 ? 0 : upper;  // smaller numbers find rank 0 in the first interval
}
TERRACE_INLINE std::int32_t rank_of(std::int32_t step, std::int32_t lower) { return (step + lower) >> 16; }
// The code of a number with these bits and this rank of its magnitude.
template <Sign kSign>
TERRACE_INLINE std::uint8_t code_of(std::int32_t bits, std::int32_t rank) {
  if (kSign == Sign::both) {
    const std::int32_t below = rank < 127 ? rank : 127;
    return static_cast<std::uint8_t>(127 + (bits < 0 ? -below : rank));
  }
  const std::int32_t least = (bits & 0x7fffffff) != 0 ? 1 : 0;
  return static_cast<std::uint8_t>(rank < least ? least : rank);
}
// `greatest`: the bits of a block's greatest magnitude. A block of zeros, or with an infinity or NaN, has no codes: its scale
// alone makes all its numbers zero, or NaN.
TERRACE_INLINE bool has_no_codes(std::uint32_t greatest) { return greatest == 0 || greatest >= 0x7f800000U; }
TERRACE_INLINE float scale_without_codes(std::uint32_t greatest) {
  return greatest == 0 ? 0.0F : std::bit_cast<float>(0x7fc00000U);
}
// At least the smallest normal number, so that its inverse is a number.
TERRACE_INLINE float scale_of(std::uint32_t greatest) {
  return std::bit_cast<float>(greatest < 0x00800000U ? 0x00800000U : greatest);
}
template <Sign kSign>
TERRACE_INLINE std::uint8_t code_of_zero() {
  return kSign == Sign::both ? 127 : 0;
}

}  // namespace terrace::rules::dynamic8
