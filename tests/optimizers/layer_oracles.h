// The published formulas of optimizers that see whole layers, in fp64 and tensor by tensor, as a reference for
// docs/internals/optimizers.md. They share no code with the implementation.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include <terrace/optimizers/optimizer.h>

namespace terrace::test {

using Numbers = std::vector<double>;

// One tensor's weights and its optimizer state.
struct LayerOracle {
  UpdateTensor tensor;
  Numbers w, m, v, rows, columns;

  explicit LayerOracle(const UpdateTensor& t)
      : tensor(t),
        w(static_cast<std::size_t>(t.elements())),
        m(w.size()),
        v(w.size()),
        rows(static_cast<std::size_t>(t.rows)),
        columns(static_cast<std::size_t>(t.columns)) {}
  [[nodiscard]] double& at(Numbers& x, std::size_t r, std::size_t c) const { return x[r * columns.size() + c]; }
  static double norm(const Numbers& x) {
    long double sum = 0;
    for (const double v : x) sum += static_cast<long double>(v) * v;
    return static_cast<double>(std::sqrt(sum));
  }
  // Adam's quotient of the corrected moments.
  Numbers adam(const OptimizerSettings& s, const UpdateStep& step, const Numbers& g) {
    Numbers u(w.size());
    for (std::size_t i = 0; i < w.size(); ++i) {
      m[i] = s.beta1 * m[i] + (1 - s.beta1) * g[i];
      v[i] = s.beta2 * v[i] + (1 - s.beta2) * g[i] * g[i];
      const double m_hat = m[i] / (1 - std::pow(s.beta1, step.step)), v_hat = v[i] / (1 - std::pow(s.beta2, step.step));
      u[i] = m_hat / (std::sqrt(v_hat) + s.eps);
    }
    return u;
  }
};

// Algorithm 2 of "Large batch optimization for deep learning".
inline void publish_lamb(const OptimizerSettings& s, const UpdateStep& step, LayerOracle& o, Numbers g) {
  auto u = o.adam(s, step, g);
  for (std::size_t i = 0; i < u.size(); ++i) u[i] += s.weight_decay * o.tensor.decay * o.w[i];
  const double weights = LayerOracle::norm(o.w), direction = LayerOracle::norm(u);
  const double ratio = o.tensor.decay != 0 && weights > 0 && direction > 0 ? weights / direction : 1;
  for (std::size_t i = 0; i < u.size(); ++i) o.w[i] -= step.learning_rate * o.tensor.rate * ratio * u[i];
}

// Algorithms 4 and 5 of "Adafactor"; rho(t) is the schedule's rate.
inline void publish_adafactor(const OptimizerSettings& s, const UpdateStep& step, LayerOracle& o, Numbers u) {
  const double beta = 1 - std::pow(step.step, -0.8), weights = LayerOracle::norm(o.w) / std::sqrt(o.w.size());
  const auto n_rows = o.rows.size(), n_columns = o.columns.size();
  if (n_rows > 1 && n_columns > 1) {
    Numbers row_means(n_rows), column_means(n_columns);
    for (std::size_t r = 0; r < n_rows; ++r)
      for (std::size_t c = 0; c < n_columns; ++c) {
        const double square = o.at(u, r, c) * o.at(u, r, c) + 1e-30;
        row_means[r] += square / static_cast<double>(n_columns);
        column_means[c] += square / static_cast<double>(n_rows);
      }
    double mean = 0;
    for (std::size_t r = 0; r < n_rows; ++r) {
      o.rows[r] = beta * o.rows[r] + (1 - beta) * row_means[r];
      mean += o.rows[r] / static_cast<double>(n_rows);
    }
    for (std::size_t c = 0; c < n_columns; ++c) o.columns[c] = beta * o.columns[c] + (1 - beta) * column_means[c];
    for (std::size_t r = 0; r < n_rows; ++r)
      for (std::size_t c = 0; c < n_columns; ++c) o.at(u, r, c) /= std::sqrt(o.rows[r] * o.columns[c] / mean);
  } else {
    for (std::size_t i = 0; i < u.size(); ++i) {
      o.v[i] = beta * o.v[i] + (1 - beta) * (u[i] * u[i] + 1e-30);
      u[i] /= std::sqrt(o.v[i]);
    }
  }
  const double mean_root = LayerOracle::norm(u) / std::sqrt(u.size());
  const double rate = step.learning_rate * o.tensor.rate;
  for (std::size_t i = 0; i < u.size(); ++i)
    o.w[i] = o.w[i] * (1 - rate * s.weight_decay * o.tensor.decay) -
             rate * std::max(1e-3, weights) * u[i] / std::max(1.0, mean_root);
}

// x [rows, columns] · y [columns, others].
inline Numbers product(const Numbers& x, const Numbers& y, std::size_t rows, std::size_t columns, std::size_t others) {
  Numbers z(rows * others);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t k = 0; k < columns; ++k)
      for (std::size_t c = 0; c < others; ++c) z[r * others + c] += x[r * columns + k] * y[k * others + c];
  return z;
}

// Jordan's NewtonSchulz5 applied to x, never to its transpose; the update's scale is from "Muon is scalable".
inline void publish_muon(const OptimizerSettings& s, const UpdateStep& step, LayerOracle& o, Numbers g) {
  const double rate = step.learning_rate * o.tensor.rate;
  const auto rows = o.rows.size(), columns = o.columns.size();
  Numbers x;
  double scale = 1;
  if (o.tensor.hidden && rows > 1 && columns > 1) {
    x = g;
    for (std::size_t i = 0; i < x.size(); ++i) {
      o.m[i] = s.momentum * o.m[i] + g[i];
      x[i] = s.nesterov ? g[i] + s.momentum * o.m[i] : o.m[i];
    }
    const double norm = LayerOracle::norm(x) + 1e-7;
    for (auto& v : x) v /= norm;
    for (int i = 0; i < 5; ++i) {
      Numbers transposed(x.size());
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < columns; ++c) transposed[c * rows + r] = x[r * columns + c];
      const auto gram = product(x, transposed, rows, columns, rows);
      const auto once = product(gram, x, rows, rows, columns), twice = product(gram, once, rows, rows, columns);
      for (std::size_t k = 0; k < x.size(); ++k) x[k] = 3.4445 * x[k] - 4.7750 * once[k] + 2.0315 * twice[k];
    }
    scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
  } else {
    x = o.adam(s, step, g);
  }
  for (std::size_t i = 0; i < x.size(); ++i)
    o.w[i] = o.w[i] * (1 - rate * s.weight_decay * o.tensor.decay) - rate * scale * x[i];
}

}  // namespace terrace::test
