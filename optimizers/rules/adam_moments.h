// The two moments of Adam and its variants: their update and bias corrections. Lines 2 to 4 of AdamW in
// docs/internals/optimizers.md.
//
// Internal to optimizers/. Threads: any. Errors: Error(ErrorKind::refused) for settings out of range.
#pragma once

#include <cmath>

#include <terrace/optimizers/formats/each_isa.h>
#include <terrace/optimizers/loops/numbers.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/optimizers/settings.h>

namespace terrace::rules {

inline void require_adam_settings(const char* optimizer, const OptimizerSettings& s) {
  require_fraction(optimizer, "beta1", s.beta1);
  require_fraction(optimizer, "beta2", s.beta2);
  require_eps(optimizer, s.eps);
  require_rate(optimizer, "the weight decay", s.weight_decay);
}

// 1 − β^t: the bias correction of a moment that began at zero, after t steps.
inline double moment_correction(double beta, const UpdateStep& step) {
  return 1.0 - std::pow(beta, static_cast<double>(step.step));
}

// One step's scalars, rounded once to the arithmetic's type.
template <class A>
struct AdamMoments {
  A one_minus_beta1;
  A beta2, one_minus_beta2;
  A inverse_root;  // 1 / sqrt(1 − β2^t)
  A eps;

  static AdamMoments of(const OptimizerSettings& s, const UpdateStep& step) {
    return {.one_minus_beta1 = static_cast<A>(1.0 - s.beta1),
            .beta2 = static_cast<A>(s.beta2),
            .one_minus_beta2 = static_cast<A>(1.0 - s.beta2),
            .inverse_root = static_cast<A>(1.0 / std::sqrt(moment_correction(s.beta2, step))),
            .eps = static_cast<A>(s.eps)};
  }
};

// Updates both moments with a gradient, and returns the divisor of the first moment.
template <class A>
TERRACE_INLINE A move_moments(const AdamMoments<A>& f, A g, A& m, A& v) {
  m = fused(f.one_minus_beta1, g - m, m);            // 2
  v = fused(f.one_minus_beta2 * g, g, f.beta2 * v);  // 3
  return fused(root(v), f.inverse_root, f.eps);      // 4
}

}  // namespace terrace::rules
