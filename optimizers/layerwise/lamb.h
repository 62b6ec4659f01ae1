// LAMB (You et al.: "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020): its scratch and its
// arithmetic, shared by the host's loops (lamb.cpp) and the GPU's kernels (cuda/layer_update.h).
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <array>
#include <cmath>

#include <terrace/optimizers/layerwise/layer_work.h>
#include <terrace/optimizers/rules/adam_moments.h>

namespace terrace::rules {

struct LambLayer {
  static constexpr const char* kName = "lamb";
  static constexpr Packed kSecondMoment = Packed::none;
  static constexpr bool kAllDirections = false;
  static constexpr bool kBitsOfDevice = false;
  static constexpr bool kHiddenOnly = false;
  static constexpr std::array kStates{ChunkKind::first_moment, ChunkKind::second_moment};

  template <class A>
  struct Scratch {
    std::span<A> packed;
    std::span<double> weights, directions;  // blocks of squares
  };
  template <class A>
  static Scratch<A> scratch(const LayerShape& shape, ScratchPlan& plan) {
    const auto blocks = blocks_of(shape.tensors);
    return {.packed = {}, .weights = plan.take_sums(blocks), .directions = plan.take_sums(blocks)};
  }
  static bool needs_all(const UpdateTensor&) { return false; }

  template <class A>
  struct Factors {
    A gradient_scale;
    AdamMoments<A> moments;
    A correction;  // 1 / (1 − β1^t)
    A weight_decay;
  };
  template <class A>
  static Factors<A> factors(const OptimizerSettings& s, const UpdateStep& step, const UpdateTensor& tensor) {
    return {.gradient_scale = static_cast<A>(step.gradient_scale * tensor.gradient_scale),
            .moments = AdamMoments<A>::of(s, step),
            .correction = static_cast<A>(1.0 / moment_correction(s.beta1, step)),
            .weight_decay = static_cast<A>(s.weight_decay * tensor.decay)};
  }
  template <class A>
  TERRACE_INLINE static A direction(const Factors<A>& f, A weight, A gradient, A& m, A& v) {
    const A g = gradient * f.gradient_scale;                  // 1
    const A d = move_moments(f.moments, g, m, v);             // 2 to 4
    return (f.correction * m) / d + f.weight_decay * weight;  // 5
  }

  // ‖weights‖ / ‖direction‖, from their sums of squares; 1 if that is 0 or not finite, and for `plain` tensors (without decay).
  TERRACE_INLINE static double trust(bool plain, double weights, double direction) {
    const bool known = weights > 0 && direction > 0 && std::isfinite(weights) && std::isfinite(direction);
    return !plain && known ? std::sqrt(weights) / std::sqrt(direction) : 1.0;
  }
};

}  // namespace terrace::rules
