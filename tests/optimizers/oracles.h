// Two references for every optimizer, for one element: as specified in docs/internals/optimizers.md, one operation per line,
// each rounded to A (std::fma once); and as published in its paper or by PyTorch, in higher precision than anything under test.
#pragma once

#include <cmath>

#include <terrace/optimizers/optimizer.h>

namespace terrace::test {

using Real = long double;

// Common to Adam's family: the moments after a step with gradient g, and the denominator.
template <class A>
A specified_moments(const OptimizerSettings& s, double t, A g, A& m, A& v) {
  const A b1 = static_cast<A>(1.0 - s.beta1), b2 = static_cast<A>(s.beta2), c2 = static_cast<A>(1.0 - s.beta2);
  const A inverse_root = static_cast<A>(1.0 / std::sqrt(1.0 - std::pow(s.beta2, t)));
  const A difference = g - m;
  m = std::fma(b1, difference, m);
  const A kept = b2 * v;
  const A part = c2 * g;
  v = std::fma(part, g, kept);
  const A root = std::sqrt(v);
  return std::fma(root, inverse_root, static_cast<A>(s.eps));
}

struct AdamWOracle {
  template <class A>
  static void specified(const OptimizerSettings& s, const UpdateStep& step, double decay, A& w, A gradient, A& m, A& v) {
    const auto t = static_cast<double>(step.step);
    const A keep = static_cast<A>(1.0 - step.learning_rate * (s.weight_decay * decay));
    const A step_size = static_cast<A>(step.learning_rate / (1.0 - std::pow(s.beta1, t)));
    const A g = gradient * static_cast<A>(step.gradient_scale);
    const A denominator = specified_moments(s, t, g, m, v);
    const A numerator = step_size * m;
    const A change = numerator / denominator;
    w = std::fma(w, keep, -change);
  }
  // Algorithm 2 of "Decoupled weight decay regularization".
  static void published(const OptimizerSettings& s, const UpdateStep& step, double decay, Real& w, Real g, Real& m, Real& v) {
    const Real t = step.step, lr = step.learning_rate, lambda = s.weight_decay * decay;
    g *= step.gradient_scale;
    m = s.beta1 * m + (1 - Real(s.beta1)) * g;
    v = s.beta2 * v + (1 - Real(s.beta2)) * g * g;
    const Real m_hat = m / (1 - std::pow(Real(s.beta1), t)), v_hat = v / (1 - std::pow(Real(s.beta2), t));
    w -= lr * (m_hat / (std::sqrt(v_hat) + Real(s.eps)) + lambda * w);
  }
};

struct AdamOracle {
  template <class A>
  static void specified(const OptimizerSettings& s, const UpdateStep& step, double decay, A& w, A gradient, A& m, A& v) {
    const auto t = static_cast<double>(step.step);
    const A wd = static_cast<A>(s.weight_decay * decay);
    const A step_size = static_cast<A>(step.learning_rate / (1.0 - std::pow(s.beta1, t)));
    const A scaled = gradient * static_cast<A>(step.gradient_scale);
    const A g = std::fma(wd, w, scaled);
    const A denominator = specified_moments(s, t, g, m, v);
    const A numerator = step_size * m;
    const A change = numerator / denominator;
    w = w - change;
  }
  // Algorithm 1 of "Adam: a method for stochastic optimization", on the gradient of the loss plus wd/2 · w².
  static void published(const OptimizerSettings& s, const UpdateStep& step, double decay, Real& w, Real g, Real& m, Real& v) {
    const Real t = step.step;
    g = g * step.gradient_scale + Real(s.weight_decay) * decay * w;
    m = s.beta1 * m + (1 - Real(s.beta1)) * g;
    v = s.beta2 * v + (1 - Real(s.beta2)) * g * g;
    const Real m_hat = m / (1 - std::pow(Real(s.beta1), t)), v_hat = v / (1 - std::pow(Real(s.beta2), t));
    w -= step.learning_rate * m_hat / (std::sqrt(v_hat) + Real(s.eps));
  }
};

struct SgdOracle {
  template <class A>
  static void specified(const OptimizerSettings& s, const UpdateStep& step, double decay, A& w, A gradient, A& velocity, A&) {
    const A wd = static_cast<A>(s.weight_decay * decay), mu = static_cast<A>(s.momentum);
    const A rate = static_cast<A>(step.learning_rate);
    const A scaled = gradient * static_cast<A>(step.gradient_scale);
    const A g = std::fma(wd, w, scaled);
    A direction = g;
    if (s.momentum != 0) {
      velocity = std::fma(mu, velocity, g);
      direction = velocity;
    }
    if (s.nesterov) direction = std::fma(mu, velocity, g);
    w = std::fma(-rate, direction, w);
  }
  // Sutskever et al. 2013 in PyTorch's form.
  static void published(const OptimizerSettings& s, const UpdateStep& step, double decay, Real& w, Real g, Real& velocity,
                        Real&) {
    g = g * step.gradient_scale + Real(s.weight_decay) * decay * w;
    velocity = s.momentum * velocity + g;
    w -= step.learning_rate * (s.nesterov ? g + s.momentum * velocity : velocity);
  }
};

struct LionOracle {
  template <class A>
  static void specified(const OptimizerSettings& s, const UpdateStep& step, double decay, A& w, A gradient, A& m, A&) {
    const A keep = static_cast<A>(1.0 - step.learning_rate * (s.weight_decay * decay));
    const A rate = static_cast<A>(step.learning_rate);
    const A g = gradient * static_cast<A>(step.gradient_scale);
    const A new1 = static_cast<A>(1.0 - s.beta1) * g;
    const A c = std::fma(static_cast<A>(s.beta1), m, new1);
    A change = c;
    if (c > 0) change = rate;
    if (c < 0) change = -rate;
    w = std::fma(w, keep, -change);
    const A new2 = static_cast<A>(1.0 - s.beta2) * g;
    m = std::fma(static_cast<A>(s.beta2), m, new2);
  }
  // Program 1 of "Symbolic discovery of optimization algorithms".
  static void published(const OptimizerSettings& s, const UpdateStep& step, double decay, Real& w, Real g, Real& m, Real&) {
    g *= step.gradient_scale;
    const Real c = s.beta1 * m + (1 - Real(s.beta1)) * g;
    const Real sign = c > 0 ? 1 : c < 0 ? -1 : 0;
    w -= step.learning_rate * (sign + Real(s.weight_decay) * decay * w);
    m = s.beta2 * m + (1 - Real(s.beta2)) * g;
  }
};

struct AdagradOracle {
  template <class A>
  static void specified(const OptimizerSettings& s, const UpdateStep& step, double decay, A& w, A gradient, A& sum, A&) {
    const A scaled = gradient * static_cast<A>(step.gradient_scale);
    const A g = std::fma(static_cast<A>(s.weight_decay * decay), w, scaled);
    sum = std::fma(g, g, sum);
    const A root = std::sqrt(sum);
    const A denominator = root + static_cast<A>(s.eps);
    const A numerator = static_cast<A>(step.learning_rate) * g;
    const A change = numerator / denominator;
    w = w - change;
  }
  // Duchi, Hazan, Singer 2011 with a diagonal matrix.
  static void published(const OptimizerSettings& s, const UpdateStep& step, double decay, Real& w, Real g, Real& sum, Real&) {
    g = g * step.gradient_scale + Real(s.weight_decay) * decay * w;
    sum += g * g;
    w -= step.learning_rate * g / (std::sqrt(sum) + Real(s.eps));
  }
};

}  // namespace terrace::test
