// The random bits of stochastic rounding: Philox4x32-7 of counters (block, stream) with key `seed`, as in core/math/philox.h
// except for the number of rounds. Eight blocks serve 64 elements: each block serves four consecutive elements of the first 32
// with its words b and a, and four of the other 32 with d and c. A word serves two elements, with its lower and its upper half.
// So each 64-bit place of a vector has one block, and the last round's products are already where the elements are.
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <cstdint>

#include <terrace/optimizers/formats/each_isa.h>

namespace terrace::rules {

// Identifies the random bits of a row of stochastically rounded elements.
struct RandomBits {
  std::uint64_t seed = 0, stream = 0, first = 0;  // `first`: the index of the first element
};

// The key of one step's bits. Steps are far apart: by 2^64 divided by the golden ratio.
constexpr std::uint64_t random_key(std::uint64_t seed, std::uint64_t step) { return seed + step * 0x9E3779B97F4A7C15U; }

// The smallest number of rounds that passes BigCrush in the paper; core/math/philox.h uses the paper's ten. FlashAttention's
// dropout also uses seven.
inline constexpr int kRandomRounds = 7;
inline constexpr std::uint32_t kRandomFactor0 = 0xD2511F53U, kRandomFactor1 = 0xCD9E8D57U;
TERRACE_INLINE constexpr void next_random_keys(std::uint32_t& k0, std::uint32_t& k1) {
  k0 += 0x9E3779B9U;
  k1 += 0xBB67AE85U;
}

TERRACE_INLINE std::uint32_t product_high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32);
}

// The four words of a block.
TERRACE_INLINE void random_words(std::uint32_t& a, std::uint32_t& b, std::uint32_t& c, std::uint32_t& d, std::uint64_t seed,
                                 std::uint64_t stream, std::uint64_t block) {
  a = static_cast<std::uint32_t>(block), b = static_cast<std::uint32_t>(block >> 32);
  c = static_cast<std::uint32_t>(stream), d = static_cast<std::uint32_t>(stream >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  TERRACE_UNROLL_ALL
  for (int round = 0; round < kRandomRounds; ++round) {
    const std::uint32_t high0 = product_high(kRandomFactor0, a), low0 = kRandomFactor0 * a;
    const std::uint32_t high1 = product_high(kRandomFactor1, c), low1 = kRandomFactor1 * c;
    a = high1 ^ b ^ k0;
    b = low1;
    c = high0 ^ d ^ k1;
    d = low0;
    next_random_keys(k0, k1);
  }
}

inline constexpr std::int64_t kRandomElements = 64;
// The first block for the elements from `element`, a multiple of kRandomElements, on.
TERRACE_INLINE std::uint64_t first_random_block(std::uint64_t element) { return element / 8; }
// True if the numbers of these elements' blocks differ only in their lower 32 bits, which is false only once in 2^35 elements.
TERRACE_INLINE bool share_upper_words(const RandomBits& bits, std::int64_t count) {
  return first_random_block(bits.first) >> 32 == first_random_block(bits.first + static_cast<std::uint64_t>(count)) >> 32;
}

TERRACE_INLINE std::uint32_t random_half(std::uint64_t seed, std::uint64_t stream, std::uint64_t element) {
  std::uint32_t a, b, c, d;
  random_words(a, b, c, d, seed, stream, first_random_block(element / 64 * 64) + element % 32 / 4);
  const std::uint32_t word = element % 64 < 32 ? (element % 4 < 2 ? b : a) : (element % 4 < 2 ? d : c);
  return element % 2 == 0 ? word & 0xffffU : word >> 16;
}

}  // namespace terrace::rules
