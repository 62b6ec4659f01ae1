// Optimizers that treat every element separately: they differ in a few operations, their rule (rule.h), and share everything
// else. A rule's file is compiled with the options of optimizers/CMakeLists.txt.
//
// Internal to optimizers/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/optimizers/check_update.h>
#include <terrace/optimizers/formats/dynamic8.h>
#include <terrace/optimizers/loops/elementwise_loops.h>
#include <terrace/optimizers/loops/rule.h>

namespace terrace::rules::elementwise {

// run() calls `loop` for every part of the chunk, tile by tile, and converts between the chunk's formats and those that the
// loop takes (Takes).
struct Takes {
  bool halves = false;  // also takes 16-bit rows unconverted; else weights of another type than the arithmetic's are read-only
  std::array<Format, 2> codes = {};  // also takes 8-bit states of these formats unconverted, if all states have them
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
  [[nodiscard]] std::vector<ChunkKind> states() const override { return {Rule::kStates.begin(), Rule::kStates.end()}; }
  void update(ThreadPool& pool, const UpdateStep& step, const ChunkUpdate& chunk) const override {
    check(Rule::kName, Rule::kStates, step, chunk);
    if (chunk.parameter.format == Format::fp64)
      update_in<double>(pool, step, chunk);
    else
      update_in<float>(pool, step, chunk);
  }

 private:
  [[nodiscard]] Takes takes() const {
    Takes t{.halves = true};
    for (std::size_t i = 0; i < Rule::kStates.size() && isa_ >= Isa::avx512vbmi; ++i)
      t.codes[i] = dynamic8::format_of(dynamic8::sign_of(Rule::kStates[i]));
    return t;
  }
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
    run(pool, isa_, step, chunk, takes(), Loop<A>([&](std::size_t part, const Tile<A>& tile) { loop(tile, factors[part]); }));
  }

  Rule rule_;
  Isa isa_;
};

}  // namespace terrace::rules::elementwise
