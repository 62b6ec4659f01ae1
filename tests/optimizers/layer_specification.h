// Optimizers that see whole layers, as specified in docs/internals/optimizers.md, for one tensor: one operation per line, each
// rounded to A (std::fma once), and sums of squares in the specified order. Only matrix products are computed by the device, as
// the page says.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/core/math/math.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/tests/optimizers/oracles.h>

namespace terrace::test {

// One tensor's weights, gradients and moments per element; an optimizer that packs its second moment uses `packed`.
template <class A>
struct SpecifiedTensor {
  UpdateTensor tensor;
  std::vector<A> w, g, m, v, packed;
};

// `first`: the tensor's position in the layer's run, which has blocks of 4,096 elements.
template <class A>
double squares_of(const std::vector<A>& x, std::int64_t first) {
  double sum = 0;
  std::array<double, 8> lanes{};
  std::size_t next = 0;
  const auto fold = [&] {
    double block = 0;
    for (const double lane : lanes) block += lane;
    sum += block;
    lanes.fill(0);
    next = 0;
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i > 0 && (first + static_cast<std::int64_t>(i)) % 4096 == 0) fold();
    const auto number = static_cast<double>(x[i]);
    lanes[next % 8] += number * number;
    ++next;
  }
  fold();
  return sum;
}

template <class A>
class LayerSpecification {
 public:
  LayerSpecification(std::string_view optimizer, const OptimizerSettings& settings, Math& math, Stream& stream)
      : optimizer_(optimizer), s_(settings), math_(math), stream_(stream) {}

  void step(const UpdateStep& step, SpecifiedTensor<A>& t) {
    if (optimizer_ == "lamb") return lamb(step, t);
    if (optimizer_ == "adafactor") return adafactor(step, t);
    if (optimizer_ == "muon") return muon(step, t);
    throw std::logic_error("no specification of this optimizer");
  }

 private:
  // Lines 1 to 4 of LAMB, and (correction · m) / d.
  A adam(const UpdateStep& step, const UpdateTensor& t, A gradient, A& m, A& v) const {
    const auto time = static_cast<double>(step.step);
    const A correction = static_cast<A>(1.0 / (1.0 - std::pow(s_.beta1, time)));
    const A g = gradient * static_cast<A>(step.gradient_scale * t.gradient_scale);
    const A d = specified_moments(s_, time, g, m, v);
    const A numerator = correction * m;
    return numerator / d;
  }
  static void descend(std::vector<A>& w, const std::vector<A>& u, double rate, double decay) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      const A p = w[i] * static_cast<A>(decay);
      const A change = static_cast<A>(rate) * u[i];
      w[i] = p - change;
    }
  }

  void lamb(const UpdateStep& step, SpecifiedTensor<A>& t) const {
    std::vector<A> u;
    for (std::size_t i = 0; i < t.w.size(); ++i) {
      const A quotient = adam(step, t.tensor, t.g[i], t.m[i], t.v[i]);
      const A decay = static_cast<A>(s_.weight_decay * t.tensor.decay) * t.w[i];
      u.push_back(quotient + decay);
    }
    const double weights = squares_of(t.w, t.tensor.first), directions = squares_of(u, t.tensor.first);
    const auto counts = [](double x) { return x > 0 && std::isfinite(x); };
    const double ratio =
        t.tensor.decay != 0 && counts(weights) && counts(directions) ? std::sqrt(weights) / std::sqrt(directions) : 1;
    descend(t.w, u, step.learning_rate * t.tensor.rate * ratio, 1);
  }

  // Adafactor's second moment in its stored form.
  static A moved(A moment, double mean, double towards) {
    const double most = std::is_same_v<A, double> ? std::ldexp(std::numeric_limits<double>::max(), -40)
                                                  : static_cast<double>(std::numeric_limits<float>::max());
    const double moved = moment + towards * ((mean + 1e-30) - moment);
    return static_cast<A>(moved > most ? most : moved);
  }
  void adafactor(const UpdateStep& step, SpecifiedTensor<A>& t) const {
    const auto rows = static_cast<std::size_t>(t.tensor.rows), columns = static_cast<std::size_t>(t.tensor.columns);
    const bool matrix = rows > 1 && columns > 1;
    const double towards = std::pow(static_cast<double>(step.step), -0.8), weights = squares_of(t.w, t.tensor.first);
    t.packed.resize(matrix ? rows + columns : t.w.size());
    std::vector<A> u;
    for (const A gradient : t.g) u.push_back(gradient * static_cast<A>(step.gradient_scale * t.tensor.gradient_scale));
    if (matrix)
      divide_matrix(t.packed, u, rows, columns, towards);
    else
      for (std::size_t i = 0; i < u.size(); ++i) {
        const double own = u[i];
        t.packed[i] = moved(t.packed[i], own * own, towards);
        u[i] = static_cast<A>(own / std::sqrt(static_cast<double>(t.packed[i])));
      }
    const auto elements = static_cast<double>(u.size());
    const double learning_rate = step.learning_rate * t.tensor.rate;
    const double size = std::max(1e-3, std::sqrt(weights / elements));
    const double mean_root = std::sqrt(squares_of(u, t.tensor.first) / elements);
    descend(t.w, u, learning_rate * size / (1.0 < mean_root ? mean_root : 1.0),
            1.0 - learning_rate * (s_.weight_decay * t.tensor.decay));
  }
  static void divide_matrix(std::vector<A>& packed, std::vector<A>& u, std::size_t rows, std::size_t columns, double towards) {
    double mean = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      std::array<double, 8> lanes{};
      for (std::size_t c = 0; c < columns; ++c) {
        const double x = u[r * columns + c];
        lanes[c % 8] += x * x;
      }
      double sum = 0;
      for (const double lane : lanes) sum += lane;
      packed[r] = moved(packed[r], sum / static_cast<double>(columns), towards);
      mean += packed[r];
    }
    mean /= static_cast<double>(rows);
    for (std::size_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (std::size_t r = 0; r < rows; ++r) {
        const double x = u[r * columns + c];
        sum += x * x;
      }
      packed[rows + c] = moved(packed[rows + c], sum / static_cast<double>(rows), towards);
    }
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < columns; ++c) {
        const A by_row = static_cast<A>(1.0 / std::sqrt(static_cast<double>(packed[r]) / mean));
        const A by_column = static_cast<A>(1.0 / std::sqrt(static_cast<double>(packed[rows + c])));
        const A divided = u[r * columns + c] * by_row;
        u[r * columns + c] = divided * by_column;
      }
  }

  void muon(const UpdateStep& step, SpecifiedTensor<A>& t) {
    const bool matrix = t.tensor.hidden && t.tensor.is_matrix();
    std::vector<A> u(t.w.size());
    t.packed.resize(matrix ? 0 : t.w.size());
    for (std::size_t i = 0; i < u.size(); ++i)
      u[i] = matrix ? momentum(step, t.tensor, t.g[i], t.m[i]) : adam(step, t.tensor, t.g[i], t.m[i], t.packed[i]);
    if (matrix) orthogonalise(t.tensor, u);
    const double rate = step.learning_rate * t.tensor.rate;
    const double longer = static_cast<double>(std::max(t.tensor.rows, t.tensor.columns));
    descend(t.w, u, matrix ? rate * (0.2 * std::sqrt(longer)) : rate, 1.0 - rate * (s_.weight_decay * t.tensor.decay));
  }
  A momentum(const UpdateStep& step, const UpdateTensor& t, A gradient, A& m) const {
    const A factor = static_cast<A>(s_.momentum);
    const A g = gradient * static_cast<A>(step.gradient_scale * t.gradient_scale);
    const A kept = factor * m;
    m = kept + g;
    const A ahead = factor * m;
    return s_.nesterov ? g + ahead : m;
  }
  void orthogonalise(const UpdateTensor& t, std::vector<A>& x) {
    const A inverse = static_cast<A>(1.0 / (std::sqrt(squares_of(x, t.first)) + 1e-7));
    for (A& number : x) number = inverse * number;
    const bool wide = t.rows <= t.columns;
    const auto shorter = std::min(t.rows, t.columns);
    const auto side = static_cast<std::size_t>(shorter);
    std::vector<A> gram(side * side), square(side * side), product(x.size());
    const auto matrix = [&](std::vector<A>& numbers, std::int64_t rows, std::int64_t columns) {
      return TensorView{
          reinterpret_cast<std::byte*>(numbers.data()), std::is_same_v<A, double> ? DType::fp64 : DType::fp32, {rows, columns}};
    };
    const auto vx = matrix(x, t.rows, t.columns), vp = matrix(product, t.rows, t.columns);
    const auto vg = matrix(gram, shorter, shorter), vs = matrix(square, shorter, shorter);
    using enum Transpose;
    for (int iteration = 0; iteration < 5; ++iteration) {
      math_.matmul(stream_, vg, vx, wide ? no : yes, vx, wide ? yes : no);
      math_.matmul(stream_, vs, vg, no, vg, no);
      stream_.synchronize();
      for (std::size_t i = 0; i < square.size(); ++i) {
        const A of_square = static_cast<A>(2.0315) * square[i];
        const A of_gram = static_cast<A>(-4.7750) * gram[i];
        square[i] = of_square + of_gram;
      }
      if (wide)
        math_.matmul(stream_, vp, vs, no, vx, no);
      else
        math_.matmul(stream_, vp, vx, no, vs, no);
      stream_.synchronize();
      for (std::size_t i = 0; i < x.size(); ++i) {
        const A kept = static_cast<A>(3.4445) * x[i];
        x[i] = kept + product[i];
      }
    }
  }

  const std::string_view optimizer_;
  const OptimizerSettings s_;
  Math& math_;
  Stream& stream_;
};

}  // namespace terrace::test
