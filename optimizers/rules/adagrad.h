// Adagrad (Duchi, Hazan, Singer: "Adaptive subgradient methods", JMLR 2011), with weight decay as L2.
#pragma once

#include <cmath>

#include <terrace/optimizers/loops/rule.h>

namespace terrace::rules {

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr std::array kStates{ChunkKind::second_moment};  // the sum of squares

  explicit Adagrad(const OptimizerSettings& settings) : s(settings) {
    require_eps(kName, s.eps);
    require_rate(kName, "the weight decay", s.weight_decay);
  }

  template <class A>
  struct Factors {
    A gradient_scale;
    A weight_decay;
    A rate;
    A eps;
  };
  template <class A>
  [[nodiscard]] Factors<A> factors(const UpdateStep& step, double decay) const {
    return {.gradient_scale = static_cast<A>(step.gradient_scale),
            .weight_decay = static_cast<A>(s.weight_decay * decay),
            .rate = static_cast<A>(step.learning_rate),
            .eps = static_cast<A>(s.eps)};
  }

  template <class A>
  TERRACE_INLINE static void element(const Factors<A>& f, A& weight, A gradient, A& sum, A&) {
    const A scaled = gradient * f.gradient_scale;          // 1
    const A g = fused(f.weight_decay, weight, scaled);     // 2
    sum = fused(g, g, sum);                                // 3
    weight = weight - (f.rate * g) / (root(sum) + f.eps);  // 4
  }

  const OptimizerSettings s;
};

}  // namespace terrace::rules
