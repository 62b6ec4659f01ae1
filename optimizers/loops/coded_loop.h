// The loop over a tile whose states are 8-bit codes in whole blocks: decoding, the rule and encoding in one pass, for
// processors that look up codes in registers (dynamic8_vbmi.h).
//
// A block's codes need its greatest magnitude, so the block is encoded during the next block's arithmetic: divisions and square
// roots are slow, and look-ups use other ports meanwhile. New numbers wait in a buffer of 1 KiB per state.
//
// Internal to optimizers/.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/optimizers/formats/dynamic8.h>
#include <terrace/optimizers/loops/group.h>
#include <terrace/optimizers/loops/random_lanes.h>
#include <terrace/optimizers/optimizer.h>
#if defined(__x86_64__)
#include <terrace/optimizers/formats/dynamic8_vbmi.h>
#endif

namespace terrace::rules::elementwise {

#if defined(__x86_64__)

template <dynamic8::Sign kSign>
class CodedState {
 public:
  explicit CodedState(const Row<float>& row) : codes_(row.codes), scales_(row.scales), before_(nowhere_) {}

  // Starts the block that begins with this element.
  TERRACE_VBMI_INLINE void begin(std::int64_t first) {
    scale_ = _mm512_set1_ps(scales_[first / dynamic8::kBlockElements]);
    greatest_ = _mm512_setzero_si512();
  }
  TERRACE_VBMI_INLINE dynamic8::Four numbers(std::int64_t i) const { return dynamic8::decode64<kSign>(codes_ + i, scale_); }
  TERRACE_VBMI_INLINE void keep(std::int64_t i, const dynamic8::Four& numbers) {
    dynamic8::store64(kept_ + i % dynamic8::kBlockElements, numbers);
    greatest_ = dynamic8::greatest_of(greatest_, numbers);
  }
  TERRACE_VBMI_INLINE void end(std::int64_t first) {
    const std::uint32_t greatest = _mm512_reduce_max_epu32(greatest_);
    float& scale = scales_[first / dynamic8::kBlockElements];
    before_ = codes_ + first;
    if (dynamic8::has_no_codes(greatest)) {
      scale = dynamic8::scale_without_codes(greatest);
      inverse_ = _mm512_setzero_ps();
      __builtin_memset(kept_, 0, sizeof kept_);  // the whole block gets the code of zero
    } else {
      scale = dynamic8::scale_of(greatest);
      inverse_ = _mm512_set1_ps(1.0F / scale);
    }
  }
  // Guesses for the previous block, at this place in it. Its numbers there are no longer needed after encode_before().
  TERRACE_VBMI_INLINE dynamic8::Guessed guessed_before(std::int64_t i) const {
    return dynamic8::guess64<kSign>(dynamic8::load64(kept_ + i % dynamic8::kBlockElements), inverse_);
  }
  TERRACE_VBMI_INLINE void encode_before(std::int64_t i, const dynamic8::Guessed& guessed) const {
    const auto place = i % dynamic8::kBlockElements;
    _mm512_storeu_si512(before_ + place, dynamic8::encode64<kSign>(dynamic8::load64(kept_ + place), inverse_, guessed));
  }

 private:
  std::uint8_t* codes_;
  float* scales_;
  std::uint8_t* before_;
  __m512 scale_, inverse_ = __m512{};
  __m512i greatest_;
  alignas(64) float kept_[dynamic8::kBlockElements] = {};
  alignas(64) std::uint8_t nowhere_[dynamic8::kBlockElements];  // receives the codes while there is no previous block
};

template <class Rule, WeightRows kWeights>
TERRACE_AVX512VBMI void coded_loop(const Tile<float>& tile, const FactorsOf<Rule, float>& factors) {
  using L = Simd<16>;
  using G = Group<L, Isa::avx512vbmi, Layout::in_order>;
  using Random = RandomLanes<16>;
  using dynamic8::kBlockElements;
  constexpr std::int64_t kAtOnce = dynamic8::kAtOnce;
  static_assert(2 * G::kElements == kAtOnce && Random::kElements == kAtOnce && kAtOnce == kRandomElements);
  constexpr bool kTwo = Rule::kStates.size() > 1;
  auto t = tile;
  know<kWeights>(t);
  know<Rows::codes>(t.state0);
  if constexpr (kTwo) know<Rows::codes>(t.state1);
  const auto f = in_all_lanes<Rule, L>(factors);
  const auto h = G::Ops::halves();
  const RandomKeys keys(t.random);
  CodedState<dynamic8::sign_of(Rule::kStates.front())> state0(t.state0);
  CodedState<dynamic8::sign_of(Rule::kStates.back())> state1(t.state1);
  for (std::int64_t first = 0; first < t.count; first += kBlockElements) {
    state0.begin(first);
    if constexpr (kTwo) state1.begin(first);
#pragma GCC unroll 1
    for (std::int64_t i = first; i < first + kBlockElements; i += kAtOnce) {
      if (t.is_random) ask_ahead<kAtOnce>(t, i);  // without random bits, loads are the bottleneck and prefetching was slower
      dynamic8::Guessed guessed0 = state0.guessed_before(i), guessed1;
      if constexpr (kTwo) guessed1 = state1.guessed_before(i);
      dynamic8::Four s0 = state0.numbers(i), s1;
      if constexpr (kTwo) s1 = state1.numbers(i);
      state0.encode_before(i, guessed0);
      if constexpr (kTwo) state1.encode_before(i, guessed1);
      Random random{};
      if (t.is_random) random = Random::of(keys, first_random_block(t.random.first + static_cast<std::uint64_t>(i)));
#pragma GCC unroll 2
      for (std::size_t pair = 0; pair < 2; ++pair) {
        const auto at = i + static_cast<std::int64_t>(pair) * G::kElements;
        auto w = read_weights<G>(h, t, at);
        const auto g = G::of(h, t.gradient, at);
        L first0{s0.v[2 * pair]}, second0{s0.v[2 * pair + 1]}, first1{}, second1{};
        if constexpr (kTwo) first1 = {s1.v[2 * pair]}, second1 = {s1.v[2 * pair + 1]};
        Rule::element(f, w.first, g.first, first0, first1);
        Rule::element(f, w.second, g.second, second0, second1);
        write_weights(h, t, at, pair == 0 ? random.first : random.second, w);
        s0.v[2 * pair] = first0.numbers, s0.v[2 * pair + 1] = second0.numbers;
        if constexpr (kTwo) s1.v[2 * pair] = first1.numbers, s1.v[2 * pair + 1] = second1.numbers;
      }
      state0.keep(i, s0);
      if constexpr (kTwo) state1.keep(i, s1);
    }
    state0.end(first);
    if constexpr (kTwo) state1.end(first);
  }
#pragma GCC unroll 1
  for (std::int64_t i = 0; i < kBlockElements; i += kAtOnce) {
    state0.encode_before(i, state0.guessed_before(i));
    if constexpr (kTwo) state1.encode_before(i, state1.guessed_before(i));
  }
}

#else  // only processors with this instruction set get tiles of codes

template <class Rule, WeightRows kWeights>
void coded_loop(const Tile<float>&, const FactorsOf<Rule, float>&) {
  __builtin_unreachable();
}

#endif

template <class Rule>
void coded(const Tile<float>& tile, const FactorsOf<Rule, float>& factors) {
  using W = WeightRows;
  switch (weights_of(tile)) {
    case W::numbers: return coded_loop<Rule, W::numbers>(tile, factors);
    case W::bf16_copy: return coded_loop<Rule, W::bf16_copy>(tile, factors);
    case W::fp16_copy: return coded_loop<Rule, W::fp16_copy>(tile, factors);
    case W::low16: return coded_loop<Rule, W::low16>(tile, factors);
    case W::low8: return coded_loop<Rule, W::low8>(tile, factors);
    case W::random: return coded_loop<Rule, W::random>(tile, factors);
  }
}

}  // namespace terrace::rules::elementwise
