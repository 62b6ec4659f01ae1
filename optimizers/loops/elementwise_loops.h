// The loops over a tile, one for each instruction set (each_isa.h), from one source.
//
// fp32 arithmetic computes on Simd. 16-bit rows are widened and rounded back in the same pass over the tile. If all rows are
// 16-bit, the lanes are the even and the odd elements of a group, which needs only shifts and masks.
//
// Internal to optimizers/.
#pragma once

#include <algorithm>

#include <terrace/optimizers/loops/coded_loop.h>
#include <terrace/optimizers/loops/group.h>
#include <terrace/optimizers/loops/random_lanes.h>

namespace terrace::rules::elementwise {

// For a tile that has only numbers: the compiler vectorises it. (Not for the baseline, where `fused` is a call.)
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

// Processes elements that fill no group: only a few at a tile's ends, so this is compiled only once, for the baseline.
template <class Rule>
__attribute__((noinline)) void one_by_one(const Tile<float>& t, const FactorsOf<Rule, float>& f, std::int64_t first,
                                          std::int64_t end) {
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

template <class Rule, Isa kIsa, WeightRows kWeights, Rows kStateRows, Layout kLayout>
TERRACE_INLINE void mixed(const Tile<float>& tile, const FactorsOf<Rule, float>& factors) {
  using L = Simd<lanes_of(kIsa)>;
  using G = Group<L, kIsa, kLayout>;
  using Random = RandomLanes<L::kCount>;
  using Bits = typename L::Bits;
  constexpr auto kStates = Rule::kStates.size();
  constexpr auto kElements = G::kElements;
  static_assert(Random::kElements == 2 * kElements && kRandomElements % Random::kElements == 0);
  auto t = tile;
  know<kWeights>(t);
  if constexpr (kStates > 0) know<kStateRows>(t.state0);
  if constexpr (kStates > 1) know<kStateRows>(t.state1);
  if constexpr (kLayout == Layout::pairs) know<Rows::halves>(t.gradient);
  const auto f = in_all_lanes<Rule, L>(factors);
  const auto h = G::Ops::halves();
  const auto updated = [&](std::int64_t i) __attribute__((always_inline)) {
    ask_ahead<kElements>(t, i);
    auto w = read_weights<G>(h, t, i);
    const auto g = G::of(h, t.gradient, i);
    G s0{}, s1{};
    if constexpr (kStates > 0) s0 = G::of(h, t.state0, i);
    if constexpr (kStates > 1) s1 = G::of(h, t.state1, i);
    Rule::element(f, w.first, g.first, s0.first, s1.first);
    Rule::element(f, w.second, g.second, s0.second, s1.second);
    write_states<kStates>(h, t, i, s0, s1);
    return w;
  };
  std::int64_t i = 0;
  if (t.is_random) {
    if (!share_upper_words(t.random, t.count)) return one_by_one<Rule>(tile, factors, 0, t.count);
    const auto behind = static_cast<std::int64_t>(t.random.first % kRandomElements);  // the first element's place in a draw
    const std::int64_t begin = behind == 0 ? 0 : std::min(t.count, kRandomElements - behind);
    one_by_one<Rule>(tile, factors, 0, begin);
    const RandomKeys keys(t.random);
    auto block = first_random_block(t.random.first + static_cast<std::uint64_t>(begin));
    auto random = Random::of(keys, block);
    const std::int64_t end = begin + (t.count - begin) / kRandomElements * kRandomElements;
    // Random numbers are drawn for two groups at once, and weights written one group late, so that the loop waits for neither.
    G first{};
    if (begin < end) first = updated(begin);
    for (i = begin; i < end; i += kRandomElements) {
      for (std::int64_t at = i; at < i + kRandomElements / 2; at += kElements) {
        const auto ahead = Random::of(keys, block += Random::kBlocks);
        const auto second = updated(at + kRandomElements / 2);
        write_weights(h, t, at, random.first, first);
        const std::int64_t next = at + kElements < i + kRandomElements / 2 ? at + kElements : i + kRandomElements;
        if (next < end) first = updated(next);
        write_weights(h, t, at + kRandomElements / 2, random.second, second);
        random = ahead;
      }
    }
  } else {
    for (; i + kElements <= t.count; i += kElements) write_weights(h, t, i, Bits{}, updated(i));
  }
  one_by_one<Rule>(tile, factors, i, t.count);
}

template <class Rule, Isa kIsa, WeightRows kWeights>
TERRACE_INLINE void mixed(const Tile<float>& t, const FactorsOf<Rule, float>& f) {
  constexpr auto kStates = Rule::kStates.size();
  const bool halves0 = t.state0.halves != nullptr, halves1 = kStates < 2 ? halves0 : t.state1.halves != nullptr;
  if (halves0 != halves1) return one_by_one<Rule>(t, f, 0, t.count);  // no recipe has this
  if constexpr (kWeights == WeightRows::random) {
    if (t.gradient.halves != nullptr && (kStates == 0 || halves0))
      return mixed<Rule, kIsa, kWeights, Rows::halves, Layout::pairs>(t, f);
  }
  if constexpr (kStates > 0) {
    if (halves0) return mixed<Rule, kIsa, kWeights, Rows::halves, Layout::in_order>(t, f);
  }
  if constexpr (kIsa != Isa::avx512bf16)  // used only with bf16 states
    mixed<Rule, kIsa, kWeights, Rows::numbers, Layout::in_order>(t, f);
}

template <class Rule, class A, Isa kIsa>
TERRACE_INLINE void body(const Tile<A>& t, const FactorsOf<Rule, A>& f) {
  if constexpr (std::is_same_v<A, float>) {
    using W = WeightRows;
    if (kIsa == Isa::baseline || t.has_halves()) switch (weights_of(t)) {
        case W::numbers: return mixed<Rule, kIsa, W::numbers>(t, f);
        case W::bf16_copy: return mixed<Rule, kIsa, W::bf16_copy>(t, f);
        case W::fp16_copy: return mixed<Rule, kIsa, W::fp16_copy>(t, f);
        case W::low16: return mixed<Rule, kIsa, W::low16>(t, f);
        case W::low8: return mixed<Rule, kIsa, W::low8>(t, f);
        case W::random: return mixed<Rule, kIsa, W::random>(t, f);
      }
  }
  numbers<Rule>(t, f);
}
template <class Rule, class A>
void loop_baseline(const Tile<A>& tile, const FactorsOf<Rule, A>& f) {
  body<Rule, A, Isa::baseline>(tile, f);
}
template <class Rule, class A>
TERRACE_AVX2 void loop_avx2(const Tile<A>& tile, const FactorsOf<Rule, A>& f) {
  body<Rule, A, Isa::avx2>(tile, f);
}
template <class Rule, class A>
TERRACE_AVX512 void loop_avx512(const Tile<A>& tile, const FactorsOf<Rule, A>& f) {
  body<Rule, A, Isa::avx512>(tile, f);
}
template <class Rule, class A>
void loop_avx512vbmi(const Tile<A>& tile, const FactorsOf<Rule, A>& f) {
  if constexpr (std::is_same_v<A, float> && Rule::kStates.size() > 0) {
    if (tile.is_coded()) return coded<Rule>(tile, f);
  }
  loop_avx512<Rule>(tile, f);
}
template <class Rule, class A>
TERRACE_AVX512BF16 void loop_avx512bf16(const Tile<A>& tile, const FactorsOf<Rule, A>& f) {
  if constexpr (std::is_same_v<A, float> && Rule::kStates.size() > 0) {
    if (tile.state0.halves != nullptr) return body<Rule, A, Isa::avx512bf16>(tile, f);
  }
  loop_avx512vbmi<Rule>(tile, f);
}
template <class Rule, class A>
constexpr auto kLoops = [] {
  using Loops = EachIsa<void(const Tile<A>&, const FactorsOf<Rule, A>&)>;
  if constexpr (kHasOtherIsas)
    return Loops{loop_baseline<Rule, A>, loop_avx2<Rule, A>, loop_avx512<Rule, A>, loop_avx512vbmi<Rule, A>,
                 loop_avx512bf16<Rule, A>};
  else
    return Loops{loop_baseline<Rule, A>, nullptr, nullptr};
}();

}  // namespace terrace::rules::elementwise
