// Optimizers that treat every element alone: they differ in a handful of operations and share everything else.
//
// What a rule is, rule.h says. Its file is compiled with the options of optimizers/CMakeLists.txt.
//
// Internal to optimizers/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <terrace/optimizers/bf16_bits.h>
#include <terrace/optimizers/check_update.h>
#include <terrace/optimizers/rule.h>

namespace terrace::elementwise {

// Elements side by side, in the arithmetic's type. States that a rule does not have are null.
template <class A>
struct Tile {
  A* weight = nullptr;
  std::uint16_t* copy = nullptr;  // null, or where the bf16 copy of the new weight goes
  const A* gradient = nullptr;
  A* state0 = nullptr;
  A* state1 = nullptr;
  std::int64_t count = 0;
  std::int64_t first = 0;  // element of the chunk
};

// Brings every part of the chunk before `loop`, tile by tile: from the formats of the chunk to the arithmetic's type and back.
template <class A>
using Loop = std::function<void(std::size_t part, const Tile<A>&)>;
void run(ThreadPool& pool, Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, const Loop<float>& loop);
void run(ThreadPool& pool, Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, const Loop<double>& loop);

template <class Rule, bool kCopy, class A>
TERRACE_INLINE void elements(const Tile<A>& tile, const typename Rule::template Factors<A>& factors) {
  constexpr auto kStates = Rule::kStates.size();
  A* __restrict weight = tile.weight;
  std::uint16_t* __restrict copy = tile.copy;
  const A* __restrict gradient = tile.gradient;
  A* __restrict state0 = tile.state0;
  A* __restrict state1 = tile.state1;
  const auto f = factors;
  const std::int64_t count = tile.count;
  for (std::int64_t i = 0; i < count; ++i) {
    A w = weight[i], s0{}, s1{};
    if constexpr (kStates > 0) s0 = state0[i];
    if constexpr (kStates > 1) s1 = state1[i];
    Rule::element(f, w, gradient[i], s0, s1);
    weight[i] = w;
    if constexpr (kCopy) copy[i] = weight_to_bf16(static_cast<float>(w));
    if constexpr (kStates > 0) state0[i] = s0;
    if constexpr (kStates > 1) state1[i] = s1;
  }
}
template <class Rule, class A>
TERRACE_INLINE void body(const Tile<A>& tile, const typename Rule::template Factors<A>& f) {
  tile.copy == nullptr ? elements<Rule, false>(tile, f) : elements<Rule, true>(tile, f);
}
template <class Rule, class A>
void loop_baseline(const Tile<A>& tile, const typename Rule::template Factors<A>& f) {
  body<Rule, A>(tile, f);
}
template <class Rule, class A>
TERRACE_AVX2 void loop_avx2(const Tile<A>& tile, const typename Rule::template Factors<A>& f) {
  body<Rule, A>(tile, f);
}
template <class Rule, class A>
TERRACE_AVX512 void loop_avx512(const Tile<A>& tile, const typename Rule::template Factors<A>& f) {
  body<Rule, A>(tile, f);
}

template <class Rule>
class Elementwise final : public Optimizer {
 public:
  Elementwise(const OptimizerSettings& settings, Isa isa) : rule_(settings), isa_(isa) {}

  [[nodiscard]] std::string name() const override { return Rule::kName; }
  [[nodiscard]] std::vector<Kind> states() const override { return {Rule::kStates.begin(), Rule::kStates.end()}; }
  void update(ThreadPool& pool, const UpdateStep& step, const ChunkUpdate& chunk) const override {
    check(Rule::kName, Rule::kStates.size(), step, chunk);
    if (chunk.parameter.format == Format::fp64)
      update_in<double>(pool, step, chunk);
    else
      update_in<float>(pool, step, chunk);
  }

 private:
  template <class A>
  void update_in(ThreadPool& pool, const UpdateStep& step, const ChunkUpdate& chunk) const {
    using Factors = typename Rule::template Factors<A>;
    std::vector<Factors> factors;
    for (const auto& part : chunk.parts) {
      auto own = step;
      own.learning_rate *= part.rate;
      factors.push_back(rule_.template factors<A>(own, part.decay));
    }
    constexpr EachIsa<void(const Tile<A>&, const Factors&)> kLoops{loop_baseline<Rule, A>, loop_avx2<Rule, A>,
                                                                   loop_avx512<Rule, A>};
    const auto loop = kLoops.of(isa_);
    run(pool, isa_, step, chunk, Loop<A>([&](std::size_t part, const Tile<A>& tile) { loop(tile, factors[part]); }));
  }

  Rule rule_;
  Isa isa_;
};

}  // namespace terrace::elementwise
