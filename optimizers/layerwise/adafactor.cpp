// Adafactor on the host.
#include <terrace/optimizers/layerwise/adafactor.h>

#include <terrace/optimizers/loops/elementwise.h>

namespace terrace::rules {
namespace {

constexpr std::int64_t kRowsATask = 16, kColumnsATask = 256;

std::int64_t tasks_of(std::int64_t count, std::int64_t a_task) { return (count + a_task - 1) / a_task; }

class Adafactor final : public LayerOptimizer<Adafactor>, public AdafactorLayer {
 public:
  Adafactor(const OptimizerSettings& settings, Isa isa) : LayerOptimizer(settings, isa) {
    require_rate(kName, "the weight decay", s_.weight_decay);
  }

  template <class A>
  void prepare(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& to) const {
    stream.submit([work, to, &pool = stream.device().pool()] {
      work->each_tile(pool, [&](const typename LayerWork<A>::Piece& piece, const elementwise::Tile<A>& tile) {
        const auto scale = gradient_scale<A>(work->step(), work->tensors()[piece.tensor]);
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
    const double shift = towards(step);
    std::vector<typename LayerWork<A>::Descent> descents;
    A* moment = to.packed.data();
    for (std::size_t i = 0; i < work.tensors().size(); ++i) {
      const auto& t = work.tensors()[i];
      if (t.is_matrix())
        divide_matrix(pool, t, work.directions(i), moment, shift, to.sums.data(), to.factors.data());
      else
        divide_vector(t, work.directions(i), moment, shift);
      moment += numbers_of(t);
      const double learning_rate = step.learning_rate * t.rate;
      work.sum_tensor(pool, i, to.directions);
      descents.push_back({.rate = rate(learning_rate, work.folded(to.weights, i), terrace::rules::folded(to.directions, t),
                                       static_cast<double>(t.elements())),
                          .decay = 1.0 - learning_rate * (s_.weight_decay * t.decay)});
    }
    work.store_packed(to.packed);
    work.descend(pool, descents);
  }

  template <class A>
  static void divide_vector(const UpdateTensor& t, A* g, A* moment, double towards) {
    for (std::int64_t i = 0; i < t.elements(); ++i) g[i] = divided(g[i], moment[i], towards);
  }

  // `moment` has one number per row, then one per column; `sums` and `factors` have as many numbers.
  template <class A>
  static void divide_matrix(ThreadPool& pool, const UpdateTensor& t, A* g, A* moment, double towards, double* sums,
                            A* factors) {
    add_rows(pool, t, g, sums);
    add_columns(pool, t, g, sums + t.rows);
    double mean = 0;
    for (std::int64_t r = 0; r < t.rows; ++r) {
      moment[r] = moved(moment[r], sums[r] / static_cast<double>(t.columns), towards);
      mean += static_cast<double>(moment[r]);
    }
    mean /= static_cast<double>(t.rows);
    for (std::int64_t r = 0; r < t.rows; ++r) factors[r] = row_factor(moment[r], mean);
    for (std::int64_t k = t.rows; k < t.rows + t.columns; ++k) {
      moment[k] = moved(moment[k], sums[k] / static_cast<double>(t.rows), towards);
      factors[k] = column_factor(moment[k]);
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

  // Each row has eight lanes: column c is added to lane c mod 8, then the lanes are added in ascending order.
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

  // Adds the rows in ascending order.
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

}  // namespace terrace::rules
