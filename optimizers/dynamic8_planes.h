// The codes of 8-bit states (dynamic8_map.h) as tables of bytes and words, each small enough for one instruction to look up 32
// or 64 of its entries in registers (dynamic8_vbmi.h).
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <terrace/optimizers/dynamic8_map.h>

namespace terrace::dynamic8 {

// Numbers of 32 bits, their first bytes, then their second ones, and so on. Without a sign a code names its magnitude; with
// one, 127 magnitudes have two codes, and 1 has one of its own that no table of 128 has room for.
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

// Encoding guesses a rank and corrects it. Of the upper 16 bits of a normalised magnitude, less kFirst, 7 tell the place within
// an octave: in a cell of so much there is one boundary between ranks at most. In a decade ranks are evenly spread, so a
// segment, the part of an octave that lies in one decade, guesses by a line: the rank r before boundary r where the cell has
// that boundary, and one of the two nearest boundaries' where it has none. One comparison with the guessed boundary then gives
// the rank, whatever the guess was.
struct Segments {
  static constexpr std::size_t kCount = 32;
  alignas(64) std::uint16_t offset[kCount] = {};  // of an octave: what makes `cell + offset` begin with the segment's number
  alignas(64) std::uint16_t slope[kCount] = {};   // 256 times the ranks a cell
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
  // Behind the last boundary within a decade the octave's next segment begins: the boundary to the next decade is its own.
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

  std::size_t rank = 0;  // the boundary that comes next
  for (std::size_t segment = 0; segment < Segments::kCount; ++segment) {
    const std::size_t first = rank;
    while (rank < boundaries.size() && segments.segment_of(static_cast<std::uint32_t>(cell_of(rank))) == segment) ++rank;
    if (rank == first) {
      segments.base[segment] = static_cast<std::uint16_t>(std::min(rank, boundaries.size() - 1) << 8);
      continue;
    }
    const std::int32_t cells = cell_of(rank - 1) - cell_of(first), ranks = static_cast<std::int32_t>(rank - 1 - first);
    const std::int32_t slope = cells == 0 ? 0 : (256 * ranks + cells / 2) / cells;
    // A base by which every boundary's cell guesses that boundary, in the middle of all of them.
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

// What the comparison relies on, of every cell: no rank in it is below the guess or more than one above it.
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

// By the guessed rank: from which bits on the rank is one more.
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

}  // namespace terrace::dynamic8
