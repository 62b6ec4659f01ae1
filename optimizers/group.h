// A group of a tile's elements in vectors, the even ones and the odd ones: so rows of 16 bits are widened and put back by
// shifts and masks, where they lie. With it all that a loop does beside a rule's arithmetic.
//
// Internal to optimizers/.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/core/fp16_bits.h>
#include <terrace/optimizers/bf16_bits.h>
#include <terrace/optimizers/lanes.h>
#include <terrace/optimizers/tile.h>

namespace terrace::elementwise {

template <class Rule, class A>
using FactorsOf = typename Rule::template Factors<A>;

template <class Rule, class L>
TERRACE_INLINE FactorsOf<Rule, L> in_all_lanes(const FactorsOf<Rule, float>& factors) {
  constexpr std::size_t kFactors = sizeof factors / sizeof(float);
  static_assert(sizeof(FactorsOf<Rule, L>) == kFactors * sizeof(L));
  float one[kFactors];
  __builtin_memcpy(one, &factors, sizeof factors);
  L all[kFactors];
  for (std::size_t i = 0; i < kFactors; ++i) all[i] = L::all(one[i]);
  FactorsOf<Rule, L> wide;
  __builtin_memcpy(&wide, all, sizeof wide);
  return wide;
}

template <class To, class From>
TERRACE_INLINE To load(const From* from) {
  To to;
  __builtin_memcpy(&to, from, sizeof to);
  return to;
}
template <class From, class To>
TERRACE_INLINE void store(To* to, From value) {
  __builtin_memcpy(to, &value, sizeof value);
}

// bf16 in all lanes. The compiler would rather make each constant anew for each use, in the instruction slots that the loop is
// short of: it is not shown that they are constants.
template <class L, bool kFromHalves>
struct LaneBits {
  using Bits = typename L::Bits;
  // An operation's NaN is one of its operands or the processor's own. Where operands were widened, no bit of its lower half is
  // set and no rounding carries it away: it needs no care.
  static constexpr bool kNansRound = kFromHalves;
  TERRACE_INLINE static auto is_nan(Bits bits) {
    const auto numbers = reinterpret_cast<typename L::Numbers>(bits);
    return numbers != numbers;
  }
  TERRACE_INLINE static HalfBits<LaneBits> halves() {
    return HalfBits<LaneBits>::of([](std::uint32_t value) __attribute__((always_inline)) {
      asm("" : "+r"(value));
      return L::all_bits(value);
    });
  }
};

// A group of elements, one of each two in a lane.
template <class L, bool kFromHalves>
struct Group {
  using Lane = L;
  using Bits = typename L::Bits;
  using Ops = LaneBits<L, kFromHalves>;
  using Halves = HalfBits<Ops>;
  static constexpr std::int64_t kElements = 2 * L::kCount;

  TERRACE_INLINE static Group of_numbers(const float* from) {
    const auto low = load<typename L::Numbers>(from), high = load<typename L::Numbers>(from + L::kCount);
    return {{L::evens(low, high)}, {L::odds(low, high)}};
  }
  TERRACE_INLINE static Group of_halves(const Halves& h, const std::uint16_t* from) {
    const auto bits = load<Bits>(from);
    return {L::of_bits(bits << 16), L::of_bits(bits & h.upper)};
  }
  TERRACE_INLINE static Group of(const Halves& h, const Row<float>& row, std::int64_t i) {
    return row.halves != nullptr ? of_halves(h, row.halves + i) : of_numbers(row.numbers + i);
  }

  TERRACE_INLINE void to_numbers(float* to) const {
    store(to, L::lower_of_pairs(even.numbers, odd.numbers));
    store(to + L::kCount, L::upper_of_pairs(even.numbers, odd.numbers));
  }
  TERRACE_INLINE static void to_halves(const Halves& h, std::uint16_t* to, Bits even_bits, Bits odd_bits) {
    store(to, (even_bits >> 16) | (odd_bits & h.upper));
  }
  // A byte of each element: its lanes hold it in the upper byte of their lower half.
  TERRACE_INLINE static Group of_bytes(const Halves& h, const std::uint8_t* from) {
    const auto bytes = reinterpret_cast<Bits>(__builtin_convertvector(load<typename L::Bytes>(from), typename L::Shorts) << 8);
    return {L::of_bits(bytes & h.lower), L::of_bits(bytes >> 16)};
  }
  TERRACE_INLINE static void to_bytes(const Halves& h, std::uint8_t* to, Bits even_bits, Bits odd_bits) {
    const auto pairs = reinterpret_cast<typename L::Shorts>((even_bits & h.lower) | (odd_bits << 16));
    store(to, __builtin_convertvector(pairs >> 8, typename L::Bytes));
  }
  TERRACE_INLINE void to_fp16(std::uint16_t* to) const {
    store(to, fp16_bits::rounded<Bits>(even.numbers) | (fp16_bits::rounded<Bits>(odd.numbers) << 16));
  }
  TERRACE_INLINE void to_state(const Halves& h, const Row<float>& row, std::int64_t i) const {
    if (row.halves == nullptr)
      to_numbers(row.numbers + i);
    else if constexpr (kFromHalves)
      to_nearest_even(h, row.halves + i, even.bits(), odd.bits());
    else
      to_halves(h, row.halves + i, h.state(even.bits()), h.state(odd.bits()));
  }
  // h.state() of both halves of a lane at once, where no NaN needs care: up where the part that is cut off is above the middle,
  // or is the middle of an odd number.
  TERRACE_INLINE static void to_nearest_even(const Halves& h, std::uint16_t* to, Bits even_bits, Bits odd_bits) {
    using Shorts = typename L::Shorts;
    const auto kept = reinterpret_cast<Shorts>((even_bits >> 16) | (odd_bits & h.upper));
    const auto cut = reinterpret_cast<Shorts>((even_bits & h.lower) | (odd_bits << 16));
    const auto one = reinterpret_cast<Shorts>(h.one | (h.one << 16)),
               middle = reinterpret_cast<Shorts>(h.half | (h.half << 16));
    const auto up = cut >= ((~kept & one) | middle);
    store(to, up ? kept + one : kept);
  }

  L even, odd;
};

template <class G>
TERRACE_INLINE G read_weights(const typename G::Halves& h, const Tile<float>& t, std::int64_t i) {
  if (t.weight != nullptr) return G::of_numbers(t.weight + i);
  if (t.low8 != nullptr) {
    const auto high = G::of_halves(h, t.copy + i), low = G::of_bytes(h, t.low8 + i);
    return {G::Lane::of_bits(h.joined(high.even.bits(), low.even.bits())),
            G::Lane::of_bits(h.joined(high.odd.bits(), low.odd.bits()))};
  }
  if (t.low == nullptr) return G::of_halves(h, t.copy + i);
  const auto high = load<typename G::Bits>(t.copy + i), low = load<typename G::Bits>(t.low + i);
  return {G::Lane::of_bits(h.joined(high << 16, low & h.lower)), G::Lane::of_bits(h.joined(high & h.upper, low >> 16))};
}
template <bool kFp16Copy, class G>
TERRACE_INLINE void write_weights(const typename G::Halves& h, const Tile<float>& t, std::int64_t i, typename G::Bits random,
                                  const G& w) {
  const auto even = w.even.bits(), odd = w.odd.bits();
  if (t.weight != nullptr) w.to_numbers(t.weight + i);
  if constexpr (kFp16Copy) return w.to_fp16(t.copy + i);
  if (t.low != nullptr) store(t.low + i, (even & h.lower) | (odd << 16));
  if (t.low8 != nullptr) {
    const auto even24 = h.to_24(even, (random & h.lower) >> 8), odd24 = h.to_24(odd, random >> 24);
    G::to_halves(h, t.copy + i, h.weight(even24), h.weight(odd24));
    G::to_bytes(h, t.low8 + i, even24, odd24);
  } else if (t.is_random) {
    G::to_halves(h, t.copy + i, h.stochastic(even, random & h.lower), h.stochastic(odd, random >> 16));
  } else if (t.copy != nullptr) {
    G::to_halves(h, t.copy + i, h.weight(even), h.weight(odd));
  }
}

// Hardware fetches ahead within a page of memory only. At every page's begin each row would wait for the memory once, and a
// loop that computes as long as the memory takes would do neither meanwhile (measured: 14.8 GB/s without, 20.9 with). A group's
// lines are asked for when the loop is this far before it.
constexpr std::int64_t kAheadElements = 1024, kLineBytes = 64;
template <std::int64_t kElements>
TERRACE_INLINE void ask_ahead(const Tile<float>& t, std::int64_t i) {
  const auto ask = []<class T>(const T* row) __attribute__((always_inline)) {
    for (std::int64_t at = 0; at < kElements; at += kLineBytes / static_cast<std::int64_t>(sizeof(T)))
      __builtin_prefetch(row + at);
  };
  const std::int64_t at = i + kAheadElements;
  for (const auto& row : {t.gradient, t.state0, t.state1}) {
    if (row.halves != nullptr) ask(row.halves + at);
    if (row.numbers != nullptr) ask(row.numbers + at);
    if (row.codes != nullptr) ask(row.codes + at);
  }
  if (t.weight != nullptr) ask(t.weight + at);
  if (t.copy != nullptr) ask(t.copy + at);
  if (t.low != nullptr) ask(t.low + at);
  if (t.low8 != nullptr) ask(t.low8 + at);
}

}  // namespace terrace::elementwise
