// Stochastic gradient descent: plain (momentum 0), with momentum, or with Nesterov momentum; weight decay as L2. As in PyTorch,
// the learning rate multiplies the whole velocity.
#pragma once

#include <terrace/optimizers/loops/rule.h>

namespace terrace::rules {

enum class Momentum { none, heavy_ball, nesterov };

template <Momentum kMomentum>
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr auto kStates = [] {
    if constexpr (kMomentum == Momentum::none)
      return std::array<ChunkKind, 0>{};
    else
      return std::array{ChunkKind::first_moment};
  }();

  explicit Sgd(const OptimizerSettings& settings) : s(settings) {}

  template <class A>
  struct Factors {
    A gradient_scale;
    A weight_decay;
    A momentum;
    A rate;
  };
  template <class A>
  [[nodiscard]] Factors<A> factors(const UpdateStep& step, double decay) const {
    return {.gradient_scale = static_cast<A>(step.gradient_scale),
            .weight_decay = static_cast<A>(s.weight_decay * decay),
            .momentum = static_cast<A>(s.momentum),
            .rate = static_cast<A>(step.learning_rate)};
  }

  template <class A>
  TERRACE_INLINE static void element(const Factors<A>& f, A& weight, A gradient, A& velocity, A&) {
    const A scaled = gradient * f.gradient_scale;       // 1
    const A g = fused(f.weight_decay, weight, scaled);  // 2
    A direction = g;
    if constexpr (kMomentum != Momentum::none) {
      velocity = fused(f.momentum, velocity, g);  // 3
      direction = velocity;
    }
    if constexpr (kMomentum == Momentum::nesterov) {
      direction = fused(f.momentum, velocity, g);  // 4
    }
    weight = fused(-f.rate, direction, weight);  // 5
  }

  const OptimizerSettings s;
};

// Calls f(rule) with the rule that the settings select.
template <class F>
auto with_sgd(const OptimizerSettings& settings, F&& f) {
  require_fraction("sgd", "momentum", settings.momentum);
  require_rate("sgd", "the weight decay", settings.weight_decay);
  if (settings.nesterov && settings.momentum == 0) refuse("sgd", "Nesterov's momentum needs a momentum above 0");
  if (settings.nesterov) return f(Sgd<Momentum::nesterov>(settings));
  return settings.momentum == 0 ? f(Sgd<Momentum::none>(settings)) : f(Sgd<Momentum::heavy_ball>(settings));
}

}  // namespace terrace::rules
