// Lion (Chen et al.: "Symbolic discovery of optimization algorithms", NeurIPS 2023).
#pragma once

#include <terrace/optimizers/loops/rule.h>

namespace terrace::rules {

struct Lion {
  static constexpr const char* kName = "lion";
  static constexpr std::array kStates{ChunkKind::first_moment};

  explicit Lion(const OptimizerSettings& settings) : s(settings) {
    require_fraction(kName, "beta1", s.beta1);
    require_fraction(kName, "beta2", s.beta2);
    require_rate(kName, "the weight decay", s.weight_decay);
  }

  template <class A>
  struct Factors {
    A gradient_scale;
    A decay;  // 1 − lr·wd
    A beta1, one_minus_beta1;
    A beta2, one_minus_beta2;
    A rate;
  };
  template <class A>
  [[nodiscard]] Factors<A> factors(const UpdateStep& step, double decay) const {
    return {.gradient_scale = static_cast<A>(step.gradient_scale),
            .decay = static_cast<A>(1.0 - step.learning_rate * (s.weight_decay * decay)),
            .beta1 = static_cast<A>(s.beta1),
            .one_minus_beta1 = static_cast<A>(1.0 - s.beta1),
            .beta2 = static_cast<A>(s.beta2),
            .one_minus_beta2 = static_cast<A>(1.0 - s.beta2),
            .rate = static_cast<A>(step.learning_rate)};
  }

  template <class A>
  TERRACE_INLINE static void element(const Factors<A>& f, A& weight, A gradient, A& m, A&) {
    const A g = gradient * f.gradient_scale;                                // 1
    const A c = fused(f.beta1, m, f.one_minus_beta1 * g);                   // 2
    const A change = choose(c > A{}, f.rate, choose(c < A{}, -f.rate, c));  // 3: zero and NaN are kept
    weight = fused(weight, f.decay, -change);                               // 4
    m = fused(f.beta2, m, f.one_minus_beta2 * g);                           // 5
  }

  const OptimizerSettings s;
};

}  // namespace terrace::rules
