// Adam (Kingma, Ba: "Adam: a method for stochastic optimization", ICLR 2015), with weight decay as L2: added to the gradient.
#pragma once

#include <terrace/optimizers/loops/rule.h>
#include <terrace/optimizers/rules/adam_moments.h>

namespace terrace::rules {

struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr std::array kStates{ChunkKind::first_moment, ChunkKind::second_moment};

  explicit Adam(const OptimizerSettings& settings) : s(settings) { require_adam_settings(kName, s); }

  template <class A>
  struct Factors {
    A gradient_scale;
    A weight_decay;
    AdamMoments<A> moments;
    A step_size;  // lr / (1 − β1^t)
  };
  template <class A>
  [[nodiscard]] Factors<A> factors(const UpdateStep& step, double decay) const {
    return {.gradient_scale = static_cast<A>(step.gradient_scale),
            .weight_decay = static_cast<A>(s.weight_decay * decay),
            .moments = AdamMoments<A>::of(s, step),
            .step_size = static_cast<A>(step.learning_rate / moment_correction(s.beta1, step))};
  }

  template <class A>
  TERRACE_INLINE static void element(const Factors<A>& f, A& weight, A gradient, A& m, A& v) {
    const A scaled = gradient * f.gradient_scale;            // 1
    const A g = fused(f.weight_decay, weight, scaled);       // 2
    const A denominator = move_moments(f.moments, g, m, v);  // 3 to 5
    weight = weight - (f.step_size * m) / denominator;       // 6
  }

  const OptimizerSettings s;
};

}  // namespace terrace::rules
