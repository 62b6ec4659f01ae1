// The random halves (random_half.h) of elements side by side, drawn between the loop's other work: nothing waits for them, and
// they fill the slots that its divisions and square roots leave.
//
// Internal to optimizers/. Threads: values.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include <terrace/optimizers/lanes.h>
#include <terrace/optimizers/random_half.h>

namespace terrace {

// The keys of all rounds, where vectors can be filled with them.
struct RandomKeys {
  std::array<std::uint64_t, kRandomRounds> first = {}, second = {};
  explicit RandomKeys(std::uint64_t seed) {
    auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
    for (std::size_t round = 0; round < kRandomRounds; ++round) {
      first[round] = k0, second[round] = k1;
      next_random_keys(k0, k1);
    }
  }
};

// Places of 64 bits, of which products read the lower halves.
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

// The one instruction is what clang makes of the masks. g++ 12 does not see it, and its own functions are for one set each.
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

// Of kBlocks blocks in a row, whose elements are 2 · kLanes in a row of a draw's first half, and of its second half: vectors of
// pairs of halves, as rows of 16 bits lie in lanes.
template <int kLanes>
struct RandomLanes {
  using Bits = typename VectorsOf<kLanes>::Bits;
  using Words = typename WidePlaces<kLanes>::Words;
  static constexpr int kBlocks = kLanes / 2;
  static constexpr std::int64_t kElements = std::int64_t{8} * kBlocks;

  // A block's words a, b, c and d lie in a place of a vector each. A product is the next round's word as it is, and the last
  // round's hold b and d where elements take them from.
  TERRACE_INLINE static RandomLanes of(const RandomKeys& keys, std::uint64_t stream, std::uint64_t block) {
    Words a = counts(std::make_integer_sequence<int, kBlocks>{}) + block;
    Words b = a >> 32, c = all(stream), d = all(stream >> 32);
    const Words m0 = all(kRandomFactor0), m1 = all(kRandomFactor1);
    constexpr std::size_t kLast = kRandomRounds - 1;
    TERRACE_UNROLL_ALL
    for (std::size_t round = 0; round < kLast; ++round) {
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

}  // namespace terrace
