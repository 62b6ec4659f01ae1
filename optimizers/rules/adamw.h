// AdamW (Loshchilov, Hutter: "Decoupled weight decay regularization", ICLR 2019).
#pragma once

#include <terrace/optimizers/loops/rule.h>
#include <terrace/optimizers/rules/adam_moments.h>

namespace terrace::rules {

struct AdamW {
  static constexpr const char* kName = "adamw";
  static constexpr std::array kStates{ChunkKind::first_moment, ChunkKind::second_moment};

  explicit AdamW(const OptimizerSettings& settings) : s(settings) { require_adam_settings(kName, s); }

  template <class A>
  struct Factors {
    A gradient_scale;
    A decay;  // 1 − lr·wd
    AdamMoments<A> moments;
    A step_size;  // lr / (1 − β1^t)
  };
  template <class A>
  [[nodiscard]] Factors<A> factors(const UpdateStep& step, double decay) const {
    return {.gradient_scale = static_cast<A>(step.gradient_scale),
            .decay = static_cast<A>(1.0 - step.learning_rate * (s.weight_decay * decay)),
            .moments = AdamMoments<A>::of(s, step),
            .step_size = static_cast<A>(step.learning_rate / moment_correction(s.beta1, step))};
  }

  // docs/internals/optimizers.md numbers these lines.
  template <class A>
  TERRACE_INLINE static void element(const Factors<A>& f, A& weight, A gradient, A& m, A& v) {
    const A g = gradient * f.gradient_scale;                 // 1
    const A denominator = move_moments(f.moments, g, m, v);  // 2 to 4
    const A change = (f.step_size * m) / denominator;        // 5
    weight = fused(weight, f.decay, -change);                // 6
  }

  const OptimizerSettings s;
};

}  // namespace terrace::rules
