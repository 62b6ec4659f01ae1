// A group of a tile's elements in two vectors: 16-bit rows are widened and rounded back. Also everything else that a loop does
// besides a rule's arithmetic.
//
// Internal to optimizers/.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/core/math/fp16_bits.h>
#include <terrace/optimizers/formats/bf16_bits.h>
#include <terrace/optimizers/formats/isa.h>
#include <terrace/optimizers/loops/simd.h>
#include <terrace/optimizers/loops/tile.h>

namespace terrace::rules::elementwise {

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

// The operations of HalfBits on all lanes. The asm hides that the values are constants: otherwise the compiler rebuilds each
// constant at each use, in the instruction slots that the loop is short of.
template <class L, Nans kNansAre>
struct LaneBits {
  using Bits = typename L::Bits;
  static constexpr auto kNans = kNansAre;
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

// Moves a row of 16-bit elements to the upper or lower halves of two vectors, and back. in_order: the first half of the
// elements, then the second half. pairs: the even elements and the odd ones, with only shifts and masks, if all rows are
// halves.
enum class Layout : std::uint8_t { in_order, pairs };
template <class Bits>
struct Two {
  Bits first, second;
};
template <class L, class Halves, Layout kLayout>
struct HalfRowIn {
  using Bits = typename L::Bits;
  static constexpr bool kPairs = kLayout == Layout::pairs;
  TERRACE_INLINE static Two<Bits> to_upper(const Halves& h, Bits row) {
    if constexpr (kPairs) return {row << 16, row & h.upper};
    return {L::template widened_first<SimdHalf::upper>(row), L::template widened_second<SimdHalf::upper>(row)};
  }
  TERRACE_INLINE static Two<Bits> to_lower(const Halves& h, Bits row) {
    if constexpr (kPairs) return {row & h.lower, row >> 16};
    return {L::template widened_first<SimdHalf::lower>(row), L::template widened_second<SimdHalf::lower>(row)};
  }
  TERRACE_INLINE static Bits of_upper(const Halves& h, Bits first, Bits second) {
    if constexpr (kPairs) return (first >> 16) | (second & h.upper);
    return L::template narrowed<SimdHalf::upper>(first, second);
  }
  TERRACE_INLINE static Bits of_lower(const Halves& h, Bits first, Bits second) {
    if constexpr (kPairs) return (first & h.lower) | (second << 16);
    return L::template narrowed<SimdHalf::lower>(first, second);
  }
};

// Rounds two vectors of 16 to a row of bf16 states by one instruction, which treats subnormal numbers as zero. If the row has
// no zero, the result equals that of HalfBits::state(). The result is a local variable: a member would go through memory.
template <class L>
TERRACE_INLINE typename L::Bits bf16_row([[maybe_unused]] const L& first, [[maybe_unused]] const L& second) {
  typename L::Bits row{};
#if defined(__x86_64__) && !defined(__clang__)  // clang has no register for this operand before it inlines
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(row) : "v"(first.numbers), "v"(second.numbers));
#endif
  return row;
}
template <class Bits>
TERRACE_INLINE bool have_zeros([[maybe_unused]] Bits row0, [[maybe_unused]] Bits row1, [[maybe_unused]] Bits magnitudes) {
  bool have = true;
#if defined(__x86_64__) && !defined(__clang__)
  asm("vptestnmw %3, %1, %%k1\n\tvptestnmw %3, %2, %%k2\n\tkortestd %%k2, %%k1"
      : "=@ccnz"(have)
      : "v"(row0), "v"(row1), "v"(magnitudes)
      : "k1", "k2");
#endif
  return have;
}

// A group of elements in two vectors.
template <class L, Isa kIsa, Layout kLayout>
struct Group {
  using Lane = L;
  using Bits = typename L::Bits;
  static constexpr bool kHasBf16 = kIsa == Isa::avx512bf16;  // then all states are bf16
  // Only results of operations are rounded: their NaNs are the processor's own or an operand's, and quiet. If the operands were
  // widened from 16 bits, the NaN's lower half is also zero.
  using Ops = LaneBits<L, kLayout == Layout::pairs ? Nans::round : Nans::quiet>;
  using Halves = HalfBits<Ops>;
  using HalfRow = HalfRowIn<L, Halves, kLayout>;
  static constexpr std::int64_t kElements = 2 * L::kCount;
  static constexpr bool kInOrder = kLayout == Layout::in_order;  // else all rows are halves

  TERRACE_INLINE static Group of_numbers(const float* from) {
    static_assert(kInOrder);
    return {{load<typename L::Numbers>(from)}, {load<typename L::Numbers>(from + L::kCount)}};
  }
  TERRACE_INLINE static Group of_halves(const Halves& h, const std::uint16_t* from) {
    const auto bits = HalfRow::to_upper(h, load<Bits>(from));
    return {L::of_bits(bits.first), L::of_bits(bits.second)};
  }
  TERRACE_INLINE static Group of(const Halves& h, const Row<float>& row, std::int64_t i) {
    if constexpr (kInOrder) {
      if (row.halves == nullptr) return of_numbers(row.numbers + i);
    }
    return of_halves(h, row.halves + i);
  }

  TERRACE_INLINE void to_numbers(float* to) const {
    store(to, first.numbers);
    store(to + L::kCount, second.numbers);
  }
  TERRACE_INLINE static void to_halves(const Halves& h, std::uint16_t* to, Bits first_bits, Bits second_bits) {
    store(to, HalfRow::of_upper(h, first_bits, second_bits));
  }
  // One byte per element, in the upper byte of its lane's lower half.
  TERRACE_INLINE static Two<Bits> of_bytes(const Halves& h, const std::uint8_t* from) {
    return HalfRow::to_lower(
        h, reinterpret_cast<Bits>(__builtin_convertvector(load<typename L::Bytes>(from), typename L::Shorts) << 8));
  }
  TERRACE_INLINE static void to_bytes(const Halves& h, std::uint8_t* to, Bits first_bits, Bits second_bits) {
    const auto shorts = reinterpret_cast<typename L::Shorts>(HalfRow::of_lower(h, first_bits, second_bits));
    store(to, __builtin_convertvector(shorts >> 8, typename L::Bytes));
  }
  TERRACE_INLINE void to_fp16(const Halves& h, std::uint16_t* to) const {
    store(to, HalfRow::of_lower(h, fp16_bits::rounded<Bits>(first.numbers), fp16_bits::rounded<Bits>(second.numbers)));
  }
  TERRACE_INLINE void to_state(const Halves& h, const Row<float>& row, std::int64_t i) const {
    if (row.halves == nullptr) return to_numbers(row.numbers + i);
    store(row.halves + i, to_nearest_even(h));
  }
  // Writes a bf16_row(), which is in order.
  TERRACE_INLINE static void to_state(const Row<float>& row, std::int64_t i, Bits bf16) {
    store(row.halves + i, kInOrder ? bf16 : L::alternating(bf16));
  }
  // h.state() of all elements, computed on halves: rounds up if the part that is cut off is above the middle, or is the middle
  // and the kept number is odd.
  [[nodiscard]] TERRACE_INLINE typename L::Shorts to_nearest_even(const Halves& h) const {
    using Shorts = typename L::Shorts;
    const auto both = [](Bits bits) __attribute__((always_inline)) { return reinterpret_cast<Shorts>(bits | bits << 16); };
    const auto kept = reinterpret_cast<Shorts>(HalfRow::of_upper(h, first.bits(), second.bits()));
    auto cut = reinterpret_cast<Shorts>(HalfRow::of_lower(h, first.bits(), second.bits()));
    if constexpr (Ops::kNans != Nans::round) cut = (kept & both(h.below_half)) > both(h.infinity) ? Shorts{} : cut;
    return cut >= ((~kept & both(h.one)) | both(h.half)) ? kept + both(h.one) : kept;
  }

  L first, second;
};

template <class G>
TERRACE_INLINE G read_weights(const typename G::Halves& h, const Tile<float>& t, std::int64_t i) {
  using HalfRow = typename G::HalfRow;
  using Lane = typename G::Lane;
  if constexpr (G::kInOrder) {
    if (t.weight != nullptr) return G::of_numbers(t.weight + i);
  }
  if (t.low == nullptr && t.low8 == nullptr) return G::of_halves(h, t.copy + i);
  const auto high = HalfRow::to_upper(h, load<typename G::Bits>(t.copy + i));
  const auto with = [&](Two<typename G::Bits> low) __attribute__((always_inline)) {
    return G{Lane::of_bits(h.joined(high.first, low.first)), Lane::of_bits(h.joined(high.second, low.second))};
  };
  if (t.low8 != nullptr) return with(G::of_bytes(h, t.low8 + i));
  return with(HalfRow::to_lower(h, load<typename G::Bits>(t.low + i)));
}
template <class G>
TERRACE_INLINE void write_weights(const typename G::Halves& h, const Tile<float>& t, std::int64_t i,
                                  const typename G::Bits& random, const G& w) {
  using HalfRow = typename G::HalfRow;
  const auto first = w.first.bits(), second = w.second.bits();
  if (t.weight != nullptr) w.to_numbers(t.weight + i);
  if (t.copy_is_fp16) return w.to_fp16(h, t.copy + i);
  if (t.low != nullptr) store(t.low + i, HalfRow::of_lower(h, first, second));
  if (t.is_random) {
    const auto r = HalfRow::to_lower(h, random);
    if (t.low8 != nullptr) {
      const auto first24 = h.to_24(first, r.first >> 8), second24 = h.to_24(second, r.second >> 8);
      G::to_halves(h, t.copy + i, h.weight(first24), h.weight(second24));
      G::to_bytes(h, t.low8 + i, first24, second24);
    } else {
      G::to_halves(h, t.copy + i, h.stochastic(first, r.first), h.stochastic(second, r.second));
    }
  } else if (t.copy != nullptr) {
    G::to_halves(h, t.copy + i, h.weight(first), h.weight(second));
  }
}

template <std::size_t kStates, class G>
TERRACE_INLINE void write_states(const typename G::Halves& h, const Tile<float>& t, std::int64_t i, const G& s0, const G& s1) {
  if constexpr (G::kHasBf16 && kStates > 0) {
    const auto row0 = bf16_row(s0.first, s0.second), row1 = kStates > 1 ? bf16_row(s1.first, s1.second) : row0;
    if (!have_zeros(row0, row1, h.below_half | h.below_half << 16)) {
      G::to_state(t.state0, i, row0);
      if constexpr (kStates > 1) G::to_state(t.state1, i, row1);
      return;
    }
  }
  if constexpr (kStates > 0) s0.to_state(h, t.state0, i);
  if constexpr (kStates > 1) s1.to_state(h, t.state1, i);
}

// Hardware prefetches only within a page. At the start of every page each row would wait for the memory once, and a loop that
// takes as long to compute as to load would lose that time. So lines are prefetched this many elements ahead, about the time
// that a line takes to arrive; at four times this distance, the lines evict each other from the first-level cache.
constexpr std::int64_t kAheadElements = 256, kLineBytes = 64;
template <std::int64_t kElements>
TERRACE_INLINE void ask_ahead(const Tile<float>& t, std::int64_t i) {
  const auto ask = []<class T>(const T* row) __attribute__((always_inline)) {
    for (std::int64_t at = 0; at < kElements; at += kLineBytes / static_cast<std::int64_t>(sizeof(T)))
      __builtin_prefetch(row + at);
  };
  const std::int64_t at = i + kAheadElements;
  const auto ask_row = [&](const Row<float>& row) __attribute__((always_inline)) {
    if (row.halves != nullptr) ask(row.halves + at);
    if (row.numbers != nullptr) ask(row.numbers + at);
    if (row.codes != nullptr) ask(row.codes + at);
  };
  ask_row(t.gradient), ask_row(t.state0), ask_row(t.state1);
  if (t.weight != nullptr) ask(t.weight + at);
  if (t.copy != nullptr) ask(t.copy + at);
  if (t.low != nullptr) ask(t.low + at);
  if (t.low8 != nullptr) ask(t.low8 + at);
}

}  // namespace terrace::rules::elementwise
