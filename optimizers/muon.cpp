// Muon (Jordan et al.: "Muon: an optimizer for hidden layers in neural networks", 2024) for the matrices of hidden layers, with
// the scale of Liu et al. ("Muon is scalable for LLM training", 2025), so that one rate serves it and AdamW, which has the
// rest.
#include <algorithm>
#include <cmath>

#include <terrace/core/math.h>
#include <terrace/optimizers/adam_moments.h>
#include <terrace/optimizers/layer_work.h>

namespace terrace {
namespace {

// x ← a·x + b·(x xᵀ)x + c·(x xᵀ)²x drives all singular values towards 1; these converge in few iterations.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr int kIterations = 5;
constexpr double kSmallestNorm = 1e-7;
constexpr double kScale = 0.2;  // an orthogonal matrix's elements, times the root of its longer side, to AdamW's size

bool is_orthogonalised(const UpdateTensor& t) { return t.hidden && t.is_matrix(); }

// y = a·y + b·x, each product rounded.
struct Combine {
  template <class A>
  TERRACE_INLINE static void loop(A* __restrict y, const A* __restrict x, A a, A b, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = a * y[i] + b * x[i];
  }
};
struct Scale {
  template <class A>
  TERRACE_INLINE static void loop(A* y, A a, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = a * y[i];
  }
};

// `elements` in tasks of 64 Ki.
template <class Task>
void in_tasks(ThreadPool& pool, std::int64_t elements, const Task& task) {
  constexpr std::int64_t kTask = 65536;
  pool.parallel_for((elements + kTask - 1) / kTask,
                    [&](std::int64_t i) { task(i * kTask, std::min(kTask, elements - i * kTask)); });
}

class Muon final : public LayerOptimizer<Muon> {
 public:
  static constexpr const char* kName = "muon";
  static constexpr Packed kSecondMoment = Packed::own;
  static constexpr bool kAllDirections = true;

  Muon(const OptimizerSettings& settings, Isa isa) : LayerOptimizer(settings, isa) {
    require_fraction(kName, "the momentum", s_.momentum);
    require_adam_settings(kName, s_);
  }
  [[nodiscard]] std::vector<Kind> states() const override { return {Kind::first_moment, Kind::second_moment}; }

  template <class A>
  struct Scratch {
    std::span<A> packed;                 // the second moments of what is no matrix
    std::span<A> product, gram, square;  // of one matrix
  };
  template <class A>
  static Scratch<A> scratch(const LayerShape& shape, ScratchPlan& plan) {
    std::int64_t matrix = 0, gram = 0;
    for (const auto& t : shape.tensors) {
      if (!is_orthogonalised(t)) continue;
      const auto shorter = std::min(t.rows, t.columns);
      matrix = std::max(matrix, t.elements());
      gram = std::max(gram, shorter * shorter);
    }
    return {.packed = plan.take<A>(most_numbers(shape)),
            .product = plan.take<A>(matrix),
            .gram = plan.take<A>(gram),
            .square = plan.take<A>(gram)};
  }

  static bool needs_all(const UpdateTensor& t) { return is_orthogonalised(t); }
  template <class A>
  void prepare(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& to) const {
    stream.submit([this, work, moments = to.packed, &pool = stream.device().pool()] { gather(pool, *work, moments); });
  }
  template <class A>
  void finish(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& to) const {
    auto& pool = stream.device().pool();
    for (std::size_t i = 0; i < work->tensors().size(); ++i)
      if (is_orthogonalised(work->tensors()[i])) orthogonalise(stream, work, i, to);
    stream.submit([this, work, &pool] { work->descend(pool, descents(*work)); });
  }

 private:
  // Of what AdamW updates, the elements that the rank with the most of them has.
  static std::int64_t most_numbers(const LayerShape& shape) {
    const auto chunk_elements = shape.share.ranks == 1 ? shape.run_elements : shape.chunk_elements;
    std::vector<std::int64_t> numbers(static_cast<std::size_t>(shape.share.ranks));
    for (const auto& t : shape.tensors)
      for (auto at = t.first, end = at + t.elements(); !is_orthogonalised(t) && at < end;) {
        const auto chunk = at / chunk_elements, next = std::min(end, (chunk + 1) * chunk_elements);
        numbers[static_cast<std::size_t>(chunk % shape.share.ranks)] += next - at;
        at = next;
      }
    return *std::ranges::max_element(numbers);
  }

  template <class A>
  struct MomentumFactors {
    A gradient_scale, momentum;
    bool nesterov;
  };
  struct Momentum {
    template <class A>
    TERRACE_INLINE static void loop(A* __restrict out, const A* __restrict gradient, A* __restrict m, std::int64_t count,
                                    MomentumFactors<A> f) {
      for (std::int64_t i = 0; i < count; ++i) {
        const A g = gradient[i] * f.gradient_scale;  // 1
        m[i] = f.momentum * m[i] + g;                // 2
        const A ahead = g + f.momentum * m[i];
        out[i] = f.nesterov ? ahead : m[i];  // 3
      }
    }
  };

  template <class A>
  struct AdamFactors {
    A gradient_scale;
    AdamMoments<A> moments;
    A correction;  // 1 / (1 − β1^t)
  };
  struct Adam {
    template <class A>
    TERRACE_INLINE static void loop(A* __restrict out, const A* __restrict gradient, A* __restrict m, A* __restrict v,
                                    std::int64_t count, AdamFactors<A> f) {
      for (std::int64_t i = 0; i < count; ++i) {
        const A g = gradient[i] * f.gradient_scale;
        const A d = move_moments(f.moments, g, m[i], v[i]);
        out[i] = (f.correction * m[i]) / d;
      }
    }
  };

  // The states, and what the steps go along: momentum, or AdamW's quotient.
  template <class A>
  void gather(ThreadPool& pool, const LayerWork<A>& work, std::span<A> moments) const {
    const auto& step = work.step();
    const auto scale_of = [&](const UpdateTensor& t) { return static_cast<A>(step.gradient_scale * t.gradient_scale); };
    const MomentumFactors<A> of_matrices{.gradient_scale = 1, .momentum = static_cast<A>(s_.momentum), .nesterov = s_.nesterov};
    const AdamFactors<A> of_the_rest{.gradient_scale = 1,
                                     .moments = AdamMoments<A>::of(s_, step),
                                     .correction = static_cast<A>(1.0 / moment_correction(s_.beta1, step))};
    std::vector<std::vector<A*>> second(work.chunks());  // of each part
    A* next = moments.data();
    for (std::size_t c = 0; c < work.chunks(); ++c)
      for (std::size_t p = 0; p < work.parts(c).size(); ++p) {
        second[c].push_back(next);
        if (!is_orthogonalised(work.tensors()[work.tensor_of(c, p)])) next += work.parts(c)[p].count;
      }
    work.load_packed(moments);
    work.each_tile(pool, [&](const typename LayerWork<A>::Piece& piece, const elementwise::Tile<A>& tile) {
      const auto& t = work.tensors()[piece.tensor];
      if (is_orthogonalised(t)) {
        auto own = of_matrices;
        own.gradient_scale = scale_of(t);
        run_loop<Momentum>(isa_, piece.directions, tile.gradient.numbers, tile.state0.numbers, tile.count, own);
      } else {
        auto own = of_the_rest;
        own.gradient_scale = scale_of(t);
        run_loop<Adam>(isa_, piece.directions, tile.gradient.numbers, tile.state0.numbers,
                       second[piece.chunk][piece.part] + piece.element, tile.count, own);
      }
    });
    work.store_packed(moments);
  }

  // In place, by Newton and Schulz. The Gram matrix is that of the shorter side.
  template <class A>
  void orthogonalise(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, std::size_t tensor,
                     const Scratch<A>& to) const {
    constexpr auto kType = sizeof(A) == sizeof(double) ? DType::fp64 : DType::fp32;
    const auto& t = work->tensors()[tensor];
    const bool wide = t.rows <= t.columns;
    const auto shorter = std::min(t.rows, t.columns), elements = t.elements();
    A* const x = work->directions(tensor);
    auto& math = stream.device().math();
    auto& pool = stream.device().pool();
    const auto view = [](A* data, std::int64_t rows, std::int64_t columns) {
      return TensorView{reinterpret_cast<std::byte*>(data), kType, {rows, columns}};
    };
    const auto matrix = view(x, t.rows, t.columns), product = view(to.product.data(), t.rows, t.columns);
    const auto gram = view(to.gram.data(), shorter, shorter), square = view(to.square.data(), shorter, shorter);

    stream.submit([this, work, tensor, x, elements, &pool] {
      const auto norm = std::sqrt(work->direction_squares(pool, tensor));
      const auto inverse = static_cast<A>(1.0 / (norm + kSmallestNorm));
      in_tasks(pool, elements,
               [&](std::int64_t first, std::int64_t count) { run_loop<Scale>(isa_, x + first, inverse, count); });
    });
    const auto combine = [&](A* y, const A* other, double a, double b, std::int64_t count) {
      stream.submit([this, y, other, a = static_cast<A>(a), b = static_cast<A>(b), count, &pool] {
        in_tasks(pool, count,
                 [&](std::int64_t first, std::int64_t n) { run_loop<Combine>(isa_, y + first, other + first, a, b, n); });
      });
    };
    for (int i = 0; i < kIterations; ++i) {
      math.matmul(stream, gram, matrix, wide ? Transpose::no : Transpose::yes, matrix, wide ? Transpose::yes : Transpose::no);
      math.matmul(stream, square, gram, Transpose::no, gram, Transpose::no);
      combine(to.square.data(), to.gram.data(), kC, kB, shorter * shorter);
      if (wide)
        math.matmul(stream, product, square, Transpose::no, matrix, Transpose::no);
      else
        math.matmul(stream, product, matrix, Transpose::no, square, Transpose::no);
      combine(x, to.product.data(), kA, 1, elements);
    }
  }

  template <class A>
  [[nodiscard]] std::vector<typename LayerWork<A>::Descent> descents(const LayerWork<A>& work) const {
    std::vector<typename LayerWork<A>::Descent> all;
    for (const auto& t : work.tensors()) {
      const double rate = work.step().learning_rate * t.rate;
      const double scale = is_orthogonalised(t) ? kScale * std::sqrt(static_cast<double>(std::max(t.rows, t.columns))) : 1.0;
      all.push_back({.rate = rate * scale, .decay = 1.0 - rate * (s_.weight_decay * t.decay)});
    }
    return all;
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimizerSettings& settings, Isa isa) {
  return std::make_unique<Muon>(settings, isa);
}

}  // namespace terrace
