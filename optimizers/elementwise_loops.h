// The loops over a tile, one for each instruction set (each_isa.h), from one text.
//
// fp32 arithmetic computes on Lanes. Where a tile has rows of 16 bits, lanes are the even and the odd elements of a group: so
// they are widened and put back by shifts and masks, where they lie, in the one pass over the tile.
//
// Internal to optimizers/.
#pragma once

#include <algorithm>

#include <terrace/core/fp16_bits.h>
#include <terrace/optimizers/bf16_bits.h>
#include <terrace/optimizers/lanes.h>
#include <terrace/optimizers/random_lanes.h>
#include <terrace/optimizers/tile.h>

namespace terrace::elementwise {

using Half = std::uint16_t;

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

// A tile of nothing but numbers: the compiler makes the lanes itself.
template <class Rule, class A>
TERRACE_INLINE void numbers(const Tile<A>& t, const FactorsOf<Rule, A>& factors) {
  constexpr auto kStates = Rule::kStates.size();
  A* __restrict weight = t.weight;
  const A* __restrict gradient = t.gradient.numbers;
  A* __restrict state0 = t.state0.numbers;
  A* __restrict state1 = t.state1.numbers;
  const auto f = factors;
  const std::int64_t count = t.count;
  for (std::int64_t i = 0; i < count; ++i) {
    A w = weight[i], s0{}, s1{};
    if constexpr (kStates > 0) s0 = state0[i];
    if constexpr (kStates > 1) s1 = state1[i];
    Rule::element(f, w, gradient[i], s0, s1);
    weight[i] = w;
    if constexpr (kStates > 0) state0[i] = s0;
    if constexpr (kStates > 1) state1[i] = s1;
  }
}

// What no group has room for.
template <class Rule>
TERRACE_INLINE void one_by_one(const Tile<float>& t, const FactorsOf<Rule, float>& f, std::int64_t first, std::int64_t end) {
  constexpr auto kStates = Rule::kStates.size();
  for (std::int64_t i = first; i < end; ++i) {
    float w, s0{}, s1{};
    if (t.weight != nullptr)
      w = t.weight[i];
    else
      w = t.low8 != nullptr  ? joined24(t.copy[i], t.low8[i])
          : t.low != nullptr ? joined(t.copy[i], t.low[i])
                             : widened(t.copy[i]);
    if constexpr (kStates > 0) s0 = t.state0.at(i);
    if constexpr (kStates > 1) s1 = t.state1.at(i);
    Rule::element(f, w, t.gradient.at(i), s0, s1);
    const auto& r = t.random;
    const auto random = t.is_random ? random_half(r.seed, r.stream, r.first + static_cast<std::uint64_t>(i)) : 0;
    if (t.weight != nullptr) t.weight[i] = w;
    if (t.low != nullptr) t.low[i] = lower_half(w);
    if (t.low8 != nullptr) {
      w = weight_to_24(w, random_byte(random));
      t.copy[i] = weight_to_bf16(w);
      t.low8[i] = low_byte(w);
    } else if (t.copy_is_fp16)
      t.copy[i] = weight_to_fp16(w);
    else if (t.copy != nullptr)
      t.copy[i] = t.is_random ? stochastic_to_bf16(w, random) : weight_to_bf16(w);
    if constexpr (kStates > 0) t.state0.set_state(i, s0);
    if constexpr (kStates > 1) t.state1.set_state(i, s1);
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
  }
  if (t.weight != nullptr) ask(t.weight + at);
  if (t.copy != nullptr) ask(t.copy + at);
  if (t.low != nullptr) ask(t.low + at);
  if (t.low8 != nullptr) ask(t.low8 + at);
}

// What is known of a tile's rows when a loop is compiled.
enum class Rows : std::uint8_t {
  mixed,
  fp16_copy,   // likewise, and the weight's copy is fp16
  all_halves,  // bf16 all of them, rounded stochastically
};
template <class Rule, Rows kRows>
TERRACE_INLINE bool are(const Tile<float>& t) {
  if constexpr (kRows == Rows::fp16_copy) return t.copy_is_fp16;
  constexpr auto kStates = Rule::kStates.size();
  return t.is_random && t.copy != nullptr && t.low8 == nullptr && t.gradient.halves != nullptr &&
         (kStates < 1 || t.state0.halves != nullptr) && (kStates < 2 || t.state1.halves != nullptr);
}

template <class Rule, class L, Rows kRows>
TERRACE_INLINE void mixed(const Tile<float>& tile, const FactorsOf<Rule, float>& factors) {
  using Bits = typename L::Bits;
  using G = Group<L, kRows == Rows::all_halves>;
  using Random = RandomLanes<L::kCount>;
  constexpr auto kStates = Rule::kStates.size();
  constexpr auto kElements = G::kElements;
  static_assert(Random::kElements == 2 * kElements);
  auto t = tile;
  if constexpr (kRows == Rows::all_halves) {
    t.weight = t.gradient.numbers = t.state0.numbers = t.state1.numbers = nullptr;
    t.low = nullptr;
    t.low8 = nullptr;
    if (!are<Rule, kRows>(t)) __builtin_unreachable();
  }
  const auto f = in_all_lanes<Rule, L>(factors);
  const auto h = G::Ops::halves();
  const auto group = [&](std::int64_t i, Bits random) __attribute__((always_inline)) {
    ask_ahead<kElements>(t, i);
    auto w = read_weights<G>(h, t, i);
    const auto g = G::of(h, t.gradient, i);
    G s0{}, s1{};
    if constexpr (kStates > 0) s0 = G::of(h, t.state0, i);
    if constexpr (kStates > 1) s1 = G::of(h, t.state1, i);
    Rule::element(f, w.even, g.even, s0.even, s1.even);
    Rule::element(f, w.odd, g.odd, s0.odd, s1.odd);
    write_weights<kRows == Rows::fp16_copy>(h, t, i, random, w);
    if constexpr (kStates > 0) s0.to_state(h, t.state0, i);
    if constexpr (kStates > 1) s1.to_state(h, t.state1, i);
  };
  std::int64_t i = 0;
  if (t.is_random) {
    const auto behind = static_cast<std::int64_t>(t.random.first % Random::kElements);  // the element that a draw begins with
    const std::int64_t begin = behind == 0 ? 0 : std::min(t.count, Random::kElements - behind);
    one_by_one<Rule>(t, factors, 0, begin);
    const RandomKeys keys(t.random.seed);
    for (i = begin; i + 2 * kElements <= t.count; i += 2 * kElements) {
      const auto random = Random::of(keys, t.random.stream, (t.random.first + static_cast<std::uint64_t>(i)) / 8);
      group(i, random.first);
      group(i + kElements, random.second);
    }
  } else {
    for (; i + kElements <= t.count; i += kElements) group(i, Bits{});
  }
  one_by_one<Rule>(t, factors, i, t.count);
}

template <class Rule, class A, int kLanes>
TERRACE_INLINE void body(const Tile<A>& tile, const FactorsOf<Rule, A>& f) {
  if constexpr (std::is_same_v<A, float>) {
    if (are<Rule, Rows::fp16_copy>(tile)) return mixed<Rule, Lanes<kLanes>, Rows::fp16_copy>(tile, f);
    if (are<Rule, Rows::all_halves>(tile)) return mixed<Rule, Lanes<kLanes>, Rows::all_halves>(tile, f);
    if (tile.has_halves()) return mixed<Rule, Lanes<kLanes>, Rows::mixed>(tile, f);
  }
  numbers<Rule>(tile, f);
}
template <class Rule, class A>
void loop_baseline(const Tile<A>& tile, const FactorsOf<Rule, A>& f) {
  body<Rule, A, 4>(tile, f);
}
template <class Rule, class A>
TERRACE_AVX2 void loop_avx2(const Tile<A>& tile, const FactorsOf<Rule, A>& f) {
  body<Rule, A, 8>(tile, f);
}
template <class Rule, class A>
TERRACE_AVX512 void loop_avx512(const Tile<A>& tile, const FactorsOf<Rule, A>& f) {
  body<Rule, A, 16>(tile, f);
}
template <class Rule, class A>
constexpr EachIsa<void(const Tile<A>&, const FactorsOf<Rule, A>&)> kLoops{loop_baseline<Rule, A>, loop_avx2<Rule, A>,
                                                                          loop_avx512<Rule, A>};

}  // namespace terrace::elementwise
