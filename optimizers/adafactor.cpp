// Adafactor (Shazeer and Stern: "Adafactor: adaptive learning rates with sublinear memory cost", ICML 2018), without a first
// moment. docs/optimizers.md has the arithmetic.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <terrace/optimizers/layer_work.h>

namespace terrace {
namespace {

constexpr double kSmallestSquare = 1e-30;  // ε1: added to squares
constexpr double kSmallestScale = 1e-3;    // ε2: of a tensor's weights
constexpr double kGreatestDirection = 1;   // d: root mean square of an update before the rate
constexpr double kDecayPower = -0.8;       // 1 − β2 = t^−0.8
constexpr std::int64_t kRowsATask = 16, kColumnsATask = 256;

std::int64_t tasks_of(std::int64_t count, std::int64_t a_task) { return (count + a_task - 1) / a_task; }

// Rows and columns of a matrix; of anything else each element has its own second moment.
std::int64_t numbers_of(const UpdateTensor& t) { return t.is_matrix() ? t.rows + t.columns : t.elements(); }

// As it is kept: a square beyond the numbers does not make a NaN of its whole row and column.
template <class A>
A kept(double value) {
  constexpr double kMost = std::numeric_limits<A>::max();
  return static_cast<A>(value > kMost ? kMost : value);
}

class Adafactor final : public LayerOptimizer<Adafactor> {
 public:
  static constexpr const char* kName = "adafactor";
  static constexpr Packed kSecondMoment = Packed::whole;
  static constexpr bool kAllDirections = true;

  Adafactor(const OptimizerSettings& settings, Isa isa) : LayerOptimizer(settings, isa) {
    require_rate(kName, "the weight decay", s_.weight_decay);
  }
  [[nodiscard]] std::vector<Kind> states() const override { return {Kind::second_moment}; }

  template <class A>
  struct Scratch {
    std::span<A> packed;  // the moments of all tensors
    std::span<double> sums;
    std::span<A> factors;
    std::span<double> weights;  // blocks of squares
  };
  static bool needs_all(const UpdateTensor&) { return true; }
  template <class A>
  static Scratch<A> scratch(const LayerShape& shape, ScratchPlan& plan) {
    std::int64_t numbers = 0, most = 0;
    for (const auto& t : shape.tensors) {
      numbers += numbers_of(t);
      if (t.is_matrix()) most = std::max(most, numbers_of(t));
    }
    return {.packed = plan.take<A>(numbers),
            .sums = plan.take<double>(most),
            .factors = plan.take<A>(most),
            .weights = plan.take_sums(blocks_of(shape.tensors))};
  }
  template <class A>
  void prepare(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& to) const {
    stream.submit([work, to, &pool = stream.device().pool()] {
      work->each_tile(pool, [&](const typename LayerWork<A>::Piece& piece, const elementwise::Tile<A>& tile) {
        const auto scale = static_cast<A>(work->step().gradient_scale * work->tensors()[piece.tensor].gradient_scale);
        for (std::int64_t i = 0; i < tile.count; ++i) piece.directions[i] = tile.gradient.numbers[i] * scale;
      });
      work->sum_weights(pool, to.weights);
    });
  }
  template <class A>
  void finish(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& to) const {
    stream.submit([this, work, to, &pool = stream.device().pool()] { descend(pool, *work, to); });
  }

 private:
  template <class A>
  void descend(ThreadPool& pool, const LayerWork<A>& work, const Scratch<A>& to) const {
    const auto& step = work.step();
    work.load_packed(to.packed);
    const double towards = std::pow(static_cast<double>(step.step), kDecayPower);
    std::vector<typename LayerWork<A>::Descent> descents;
    A* moment = to.packed.data();
    for (std::size_t i = 0; i < work.tensors().size(); ++i) {
      const auto& t = work.tensors()[i];
      if (t.is_matrix())
        divide_matrix(pool, t, work.directions(i), moment, towards, to.sums.data(), to.factors.data());
      else
        divide_vector(t, work.directions(i), moment, towards);
      moment += numbers_of(t);
      const auto root_mean = [&](double squares) { return std::sqrt(squares / static_cast<double>(t.elements())); };
      const double direction = root_mean(work.direction_squares(pool, i)), weights = root_mean(work.folded(to.weights, i));
      const double rate = step.learning_rate * t.rate;
      descents.push_back({.rate = (rate * std::max(kSmallestScale, weights)) / std::max(1.0, direction / kGreatestDirection),
                          .decay = 1.0 - rate * (s_.weight_decay * t.decay)});
    }
    work.store_packed(to.packed);
    work.descend(pool, descents);
  }

  template <class A>
  static double moved(A moment, double mean, double towards) {
    const auto old = static_cast<double>(moment);
    return old + towards * (mean - old);
  }

  template <class A>
  static void divide_vector(const UpdateTensor& t, A* g, A* moment, double towards) {
    for (std::int64_t i = 0; i < t.elements(); ++i) {
      const auto own = static_cast<double>(g[i]);
      moment[i] = kept<A>(moved(moment[i], own * own + kSmallestSquare, towards));
      g[i] = static_cast<A>(own / std::sqrt(static_cast<double>(moment[i])));
    }
  }

  // `moment`: of the rows, then of the columns; `sums` and `factors` have room for as many.
  template <class A>
  static void divide_matrix(ThreadPool& pool, const UpdateTensor& t, A* g, A* moment, double towards, double* sums,
                            A* factors) {
    add_rows(pool, t, g, sums);
    add_columns(pool, t, g, sums + t.rows);
    double mean = 0;
    for (std::int64_t r = 0; r < t.rows; ++r) {
      moment[r] = kept<A>(moved(moment[r], sums[r] / static_cast<double>(t.columns) + kSmallestSquare, towards));
      mean += static_cast<double>(moment[r]);
    }
    mean /= static_cast<double>(t.rows);
    for (std::int64_t r = 0; r < t.rows; ++r)
      factors[r] = static_cast<A>(1.0 / std::sqrt(static_cast<double>(moment[r]) / mean));
    for (std::int64_t k = t.rows; k < t.rows + t.columns; ++k) {
      moment[k] = kept<A>(moved(moment[k], sums[k] / static_cast<double>(t.rows) + kSmallestSquare, towards));
      factors[k] = static_cast<A>(1.0 / std::sqrt(static_cast<double>(moment[k])));
    }
    pool.parallel_for(tasks_of(t.rows, kRowsATask), [&](std::int64_t task) {
      for (std::int64_t r = task * kRowsATask; r < std::min(t.rows, (task + 1) * kRowsATask); ++r) {
        A* __restrict row = g + r * t.columns;
        const A* __restrict of_column = factors + t.rows;
        const A of_row = factors[r];
        for (std::int64_t c = 0; c < t.columns; ++c) row[c] = (row[c] * of_row) * of_column[c];
      }
    });
  }

  // Eight lanes a row: column c adds to lane c mod 8; they are folded in ascending order.
  template <class A>
  static void add_rows(ThreadPool& pool, const UpdateTensor& t, const A* g, double* sums) {
    pool.parallel_for(tasks_of(t.rows, kRowsATask), [&](std::int64_t task) {
      for (std::int64_t r = task * kRowsATask; r < std::min(t.rows, (task + 1) * kRowsATask); ++r) {
        constexpr std::int64_t kLanes = 8;
        double lanes[kLanes] = {};
        const A* const row = g + r * t.columns;
        const auto whole = t.columns / kLanes * kLanes;
        for (std::int64_t c = 0; c < whole; c += kLanes)
          for (std::int64_t lane = 0; lane < kLanes; ++lane) {
            const auto v = static_cast<double>(row[c + lane]);
            lanes[lane] += v * v;
          }
        for (std::int64_t c = whole; c < t.columns; ++c) {
          const auto v = static_cast<double>(row[c]);
          lanes[c - whole] += v * v;
        }
        sums[r] = 0;
        for (const double lane : lanes) sums[r] += lane;
      }
    });
  }

  // Rows in ascending order.
  template <class A>
  static void add_columns(ThreadPool& pool, const UpdateTensor& t, const A* g, double* sums) {
    pool.parallel_for(tasks_of(t.columns, kColumnsATask), [&](std::int64_t task) {
      const auto first = task * kColumnsATask, count = std::min(kColumnsATask, t.columns - first);
      double* __restrict own = sums + first;
      std::fill(own, own + count, 0.0);
      for (std::int64_t r = 0; r < t.rows; ++r) {
        const A* __restrict row = g + r * t.columns + first;
        for (std::int64_t c = 0; c < count; ++c) {
          const auto v = static_cast<double>(row[c]);
          own[c] += v * v;
        }
      }
    });
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const OptimizerSettings& settings, Isa isa) {
  return std::make_unique<Adafactor>(settings, isa);
}

}  // namespace terrace
