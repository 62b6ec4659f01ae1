// Adam (Kingma, Ba: "Adam: a method for stochastic optimization", ICLR 2015), with weight decay as L2: it joins the gradient.
#pragma once

#include <cmath>

#include <terrace/optimizers/rule.h>

namespace terrace::rules {

struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr std::array kStates{Kind::first_moment, Kind::second_moment};

  explicit Adam(const OptimizerSettings& settings) : s(settings) {
    require_fraction(kName, "beta1", s.beta1);
    require_fraction(kName, "beta2", s.beta2);
    require_eps(kName, s.eps);
    require_rate(kName, "the weight decay", s.weight_decay);
  }

  template <class A>
  struct Factors {
    A gradient_scale;
    A weight_decay;
    A one_minus_beta1;
    A beta2, one_minus_beta2;
    A inverse_root;  // 1 / sqrt(1 − β2^t)
    A eps;
    A step_size;  // lr / (1 − β1^t)
  };
  template <class A>
  [[nodiscard]] Factors<A> factors(const UpdateStep& step, double decay) const {
    const auto t = static_cast<double>(step.step);
    const double correction1 = 1.0 - std::pow(s.beta1, t);
    const double correction2 = 1.0 - std::pow(s.beta2, t);
    return {.gradient_scale = static_cast<A>(step.gradient_scale),
            .weight_decay = static_cast<A>(s.weight_decay * decay),
            .one_minus_beta1 = static_cast<A>(1.0 - s.beta1),
            .beta2 = static_cast<A>(s.beta2),
            .one_minus_beta2 = static_cast<A>(1.0 - s.beta2),
            .inverse_root = static_cast<A>(1.0 / std::sqrt(correction2)),
            .eps = static_cast<A>(s.eps),
            .step_size = static_cast<A>(step.learning_rate / correction1)};
  }

  template <class A>
  TERRACE_INLINE static void element(const Factors<A>& f, A& weight, A gradient, A& m, A& v) {
    const A scaled = gradient * f.gradient_scale;                 // 1
    const A g = scaled + f.weight_decay * weight;                 // 2
    m = m + f.one_minus_beta1 * (g - m);                          // 3
    v = f.beta2 * v + (f.one_minus_beta2 * g) * g;                // 4
    const A denominator = std::sqrt(v) * f.inverse_root + f.eps;  // 5
    weight = weight - (f.step_size * m) / denominator;            // 6
  }

  const OptimizerSettings s;
};

}  // namespace terrace::rules
