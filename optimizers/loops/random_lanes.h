// The random halves (random_half.h) of several elements side by side, drawn between the loop's other work: nothing waits for
// them, and they use the instruction slots that divisions and square roots leave free.
//
// Internal to optimizers/. Threads: values.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include <terrace/optimizers/formats/random_half.h>
#include <terrace/optimizers/loops/simd.h>

namespace terrace::rules {

// The operands of `^` in the rounds, ready to fill vectors. In the first three rounds the keys are already combined with the
// words that are equal for all blocks of a stream, if the block numbers differ only in their lower 32 bits.
struct RandomKeys {
  std::array<std::uint64_t, kRandomRounds> first = {}, second = {};
  explicit RandomKeys(const RandomBits& from) {
    auto k0 = static_cast<std::uint32_t>(from.seed), k1 = static_cast<std::uint32_t>(from.seed >> 32);
    for (std::size_t round = 0; round < kRandomRounds; ++round) {
      first[round] = k0, second[round] = k1;
      next_random_keys(k0, k1);
    }
    const auto product = [](std::uint64_t a, std::uint32_t b) { return (a & 0xffffffffU) * b; };
    const std::uint64_t p1 = product(from.stream, kRandomFactor1);
    const std::uint64_t p0 = product((p1 >> 32) ^ (first_random_block(from.first) >> 32) ^ first[0], kRandomFactor0);
    second[0] ^= from.stream >> 32;
    first[1] ^= p1, second[1] ^= p0 >> 32;
    second[2] ^= p0;
  }
};

// Vectors of 64-bit places; a product reads the lower half of each place.
template <int kLanes>
struct WidePlaces;
#define TERRACE_WIDE_PLACES(lanes)                                       \
  template <>                                                            \
  struct WidePlaces<lanes> {                                             \
    typedef std::uint64_t Words __attribute__((vector_size(4 * lanes))); \
  }
TERRACE_WIDE_PLACES(4);
TERRACE_WIDE_PLACES(8);
TERRACE_WIDE_PLACES(16);
#undef TERRACE_WIDE_PLACES

// clang turns the masks into this one instruction. g++ 12 does not, and its intrinsics are for one instruction set each.
template <class Words>
TERRACE_INLINE Words product_of_lower(Words a, Words b) {
#if defined(__x86_64__) && !defined(__clang__)
  if constexpr (sizeof(Words) == 16)
    asm("pmuludq %1, %0" : "+x"(a) : "x"(b));
  else if constexpr (sizeof(Words) == 32)
    asm("vpmuludq %1, %0, %0" : "+x"(a) : "x"(b));
  else
    asm("vpmuludq %1, %0, %0" : "+v"(a) : "v"(b));
  return a;
#else
  return (a & 0xffffffffU) * (b & 0xffffffffU);
#endif
}

// The random halves of kBlocks consecutive blocks: for 2 · kLanes consecutive elements of a draw's first half, and for as many
// of its second half. Each vector has pairs of halves in its lanes, like a row of 16-bit elements.
template <int kLanes>
struct RandomLanes {
  using Bits = typename VectorsOf<kLanes>::Bits;
  using Words = typename WidePlaces<kLanes>::Words;
  static constexpr int kBlocks = kLanes / 2;
  static constexpr std::int64_t kElements = std::int64_t{8} * kBlocks;

  // A block's words a, b, c and d are in one place of four vectors. A product serves as the next round's word unchanged, and
  // the last round's products have b and d where the elements read them.
  TERRACE_INLINE static RandomLanes of(const RandomKeys& keys, std::uint64_t block) {
    const Words m0 = all(kRandomFactor0), m1 = all(kRandomFactor1);
    const Words own = product_of_lower(counts(std::make_integer_sequence<int, kBlocks>{}) + block, m0);
    Words b = product_of_lower((own >> 32) ^ keys.second[0], m1), d = {};
    Words a = (b >> 32) ^ keys.first[1], c = own ^ keys.second[1];
    constexpr std::size_t kLast = kRandomRounds - 1;
    TERRACE_UNROLL_ALL
    for (std::size_t round = 2; round < kLast; ++round) {
      const Words p0 = product_of_lower(a, m0), p1 = product_of_lower(c, m1);
      a = (p1 >> 32) ^ b ^ keys.first[round];
      b = p1;
      c = (p0 >> 32) ^ d ^ keys.second[round];
      d = p0;
    }
    return {reinterpret_cast<Bits>(product_of_lower(c, m1) ^ (b << 32) ^ (keys.first[kLast] << 32)),
            reinterpret_cast<Bits>(product_of_lower(a, m0) ^ (d << 32) ^ (keys.second[kLast] << 32))};
  }

  Bits first, second;

 private:
  TERRACE_INLINE static Words all(std::uint64_t value) { return Words{} + value; }
  template <int... kPlace>
  TERRACE_INLINE static Words counts(std::integer_sequence<int, kPlace...>) {
    return Words{kPlace...};
  }
};

}  // namespace terrace::rules
