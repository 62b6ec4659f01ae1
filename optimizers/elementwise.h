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
#include <vector>

#include <terrace/optimizers/check_update.h>
#include <terrace/optimizers/elementwise_loops.h>
#include <terrace/optimizers/rule.h>

namespace terrace::elementwise {

// Brings every part of the chunk before `loop`, tile by tile: from the formats of the chunk to those that the loop takes and
// back.
enum class Takes {
  numbers,  // rows in the arithmetic's type; weights that are kept otherwise can be read only
  halves,   // 16-bit rows as they lie, too
};
template <class A>
using Loop = std::function<void(std::size_t part, const Tile<A>&)>;
void run(ThreadPool& pool, Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, Takes takes, const Loop<float>& loop);
void run(ThreadPool& pool, Isa isa, const UpdateStep& step, const ChunkUpdate& chunk, Takes takes, const Loop<double>& loop);

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
      own.gradient_scale *= part.gradient_scale;
      factors.push_back(rule_.template factors<A>(own, part.decay));
    }
    const auto loop = kLoops<Rule, A>.of(isa_);
    run(pool, isa_, step, chunk, Takes::halves,
        Loop<A>([&](std::size_t part, const Tile<A>& tile) { loop(tile, factors[part]); }));
  }

  Rule rule_;
  Isa isa_;
};

}  // namespace terrace::elementwise
