// The codes of 8-bit states (dynamic8_map.h) as tables of bytes and words, each small enough for one instruction to look up 32
// or 64 of its entries in registers (dynamic8_vbmi.h).
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <terrace/optimizers/formats/dynamic8_map.h>

namespace terrace::rules::dynamic8 {

// Tables of 32-bit numbers: first all first bytes, then all second bytes, and so on. Without a sign the entry is the code. With
// a sign two codes share each of 127 magnitudes, and magnitude 1 has a single code, which does not fit into a table of 128.
template <Sign kSign>
inline constexpr std::size_t kPlaneBytes = kSign == Sign::both ? 128 : 256;
template <Sign kSign>
struct Planes {
  alignas(64) std::uint8_t bytes[4][kPlaneBytes<kSign>] = {};

  constexpr void set(std::size_t entry, std::uint32_t bits) {
    for (auto& plane : bytes) {
      plane[entry] = static_cast<std::uint8_t>(bits);
      bits >>= 8;
    }
  }
};
template <Sign kSign>
constexpr Planes<kSign> make_magnitude_planes() {
  constexpr auto magnitudes = make_magnitudes<kSign>();
  Planes<kSign> planes;
  for (std::size_t i = 0; i < kPlaneBytes<kSign>; ++i) planes.set(i, std::bit_cast<std::uint32_t>(magnitudes[i]));
  return planes;
}

// Encoding guesses a rank and corrects it. A cell is one value of the upper 16 bits of a normalised magnitude, less kFirst; 7
// of these bits are the place within an octave. A cell has at most one boundary between ranks. Ranks are evenly spread in a
// decade, so in each segment (the part of an octave within one decade) the guess is a line. If the cell has boundary r, the
// guess is r, the rank before it; else it is one of the two nearest boundaries. One comparison with the guessed boundary then
// gives the rank.
struct Segments {
  static constexpr std::size_t kCount = 32;
  alignas(64) std::uint16_t offset[kCount] = {};  // by octave: `cell + offset` begins with the segment's number
  alignas(64) std::uint16_t slope[kCount] = {};   // 256 times the ranks per cell
  alignas(64) std::uint16_t base[kCount] = {};    // 256 times the rank at cell 0, modulo 2^16
  static constexpr unsigned kOctaveBits = 7;      // of a cell's number

  [[nodiscard]] constexpr std::size_t segment_of(std::uint32_t cell) const {
    return (cell + offset[cell >> kOctaveBits]) >> kOctaveBits;
  }
  [[nodiscard]] constexpr std::uint32_t guess(std::uint32_t cell) const {
    const auto segment = segment_of(cell);
    return ((cell * slope[segment] + base[segment]) & 0xffffU) >> 8;
  }
};
inline constexpr std::uint32_t kCells = kLast - kFirst + 1;

template <Sign kSign>
constexpr Segments make_segments() {
  constexpr auto boundaries = make_boundaries<kSign>();
  const auto cell_of = [&](std::size_t boundary) { return static_cast<std::int32_t>(boundaries[boundary] >> 16) - kFirst; };
  Segments segments;
  // The octave's next segment begins after the last boundary within a decade: it includes the boundary to the next decade.
  std::uint32_t octave = 0, decades = 0;
  const auto fill_to = [&](std::uint32_t end) {
    for (; octave < end; ++octave) segments.offset[octave] = static_cast<std::uint16_t>(decades << Segments::kOctaveBits);
  };
  for (std::size_t count = kSign == Sign::both ? 1 : 2, last = count; last + 1 < boundaries.size(); count *= 2, last += count) {
    const auto cell = static_cast<std::uint32_t>(cell_of(last - 1) + 1);
    const std::uint32_t at = cell >> Segments::kOctaveBits;
    fill_to(at);
    segments.offset[octave++] =
        static_cast<std::uint16_t>((decades << Segments::kOctaveBits) + ((at + 1) << Segments::kOctaveBits) - cell);
    ++decades;
  }
  fill_to(Segments::kCount);

  std::size_t rank = 0;  // the next boundary
  for (std::size_t segment = 0; segment < Segments::kCount; ++segment) {
    const std::size_t first = rank;
    while (rank < boundaries.size() && segments.segment_of(static_cast<std::uint32_t>(cell_of(rank))) == segment) ++rank;
    if (rank == first) {
      segments.base[segment] = static_cast<std::uint16_t>(std::min(rank, boundaries.size() - 1) << 8);
      continue;
    }
    const std::int32_t cells = cell_of(rank - 1) - cell_of(first), ranks = static_cast<std::int32_t>(rank - 1 - first);
    const std::int32_t slope = cells == 0 ? 0 : (256 * ranks + cells / 2) / cells;
    // The bases for which every boundary's cell guesses that boundary; the middle one is taken.
    std::int32_t least = -0x7fffffff, greatest = 0x7fffffff;
    for (std::size_t r = first; r < rank; ++r) {
      const std::int32_t base = 256 * static_cast<std::int32_t>(r) - slope * cell_of(r);
      least = std::max(least, base);
      greatest = std::min(greatest, base + 255);
    }
    segments.slope[segment] = static_cast<std::uint16_t>(slope);
    segments.base[segment] = static_cast<std::uint16_t>(least + (greatest - least) / 2);
  }
  return segments;
}

// The comparison requires for every cell: no rank in it is below the guess or more than one above it.
template <Sign kSign>
constexpr bool guesses_well(const Segments& segments) {
  constexpr auto boundaries = make_boundaries<kSign>();
  std::size_t rank = 0;
  for (std::uint32_t cell = 0; cell < kCells; ++cell) {
    const std::size_t first = rank;
    if (rank < boundaries.size() && (boundaries[rank] >> 16) - static_cast<std::uint32_t>(kFirst) == cell) ++rank;
    const auto guess = segments.guess(cell);
    if (guess > first || guess + 1 < rank || guess >= kPlaneBytes<kSign>) return false;
  }
  return true;
}

// For each guessed rank: the smallest bits that have the next rank.
template <Sign kSign>
constexpr Planes<kSign> make_boundary_planes() {
  constexpr auto boundaries = make_boundaries<kSign>();
  Planes<kSign> planes;
  for (std::size_t i = 0; i < kPlaneBytes<kSign>; ++i) planes.set(i, i < boundaries.size() ? boundaries[i] : ~0U);
  return planes;
}

template <Sign kSign>
inline constexpr Planes<kSign> kMagnitudePlanes = make_magnitude_planes<kSign>();
template <Sign kSign>
inline constexpr Planes<kSign> kBoundaryPlanes = make_boundary_planes<kSign>();
template <Sign kSign>
inline constexpr Segments kSegments = make_segments<kSign>();
static_assert(guesses_well<Sign::both>(kSegments<Sign::both>) && guesses_well<Sign::none>(kSegments<Sign::none>));

}  // namespace terrace::rules::dynamic8
