// LAMB (You et al.: "Large batch optimization for deep learning: training BERT in 76 minutes", ICLR 2020).
#include <cmath>

#include <terrace/optimizers/adam_moments.h>
#include <terrace/optimizers/layer_work.h>

namespace terrace {
namespace {

class Lamb final : public LayerOptimizer<Lamb> {
 public:
  static constexpr const char* kName = "lamb";
  static constexpr Packed kSecondMoment = Packed::none;
  static constexpr bool kAllDirections = false;

  Lamb(const OptimizerSettings& settings, Isa isa) : LayerOptimizer(settings, isa) { require_adam_settings(kName, s_); }
  [[nodiscard]] std::vector<Kind> states() const override { return {Kind::first_moment, Kind::second_moment}; }

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
  void prepare(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& to) const {
    stream.submit([this, work, to, &pool = stream.device().pool()] { direct(pool, *work, to); });
  }
  template <class A>
  void finish(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& from) const {
    stream.submit([work, from, &pool = stream.device().pool()] {
      std::vector<typename LayerWork<A>::Descent> descents;
      for (std::size_t i = 0; i < work->tensors().size(); ++i)
        descents.push_back({.rate = work->step().learning_rate * work->tensors()[i].rate * trust(*work, from, i), .decay = 1});
      work->descend(pool, descents);
    });
  }

 private:
  template <class A>
  struct Factors {
    A gradient_scale;
    AdamMoments<A> moments;
    A correction;  // 1 / (1 − β1^t)
    A weight_decay;
  };
  struct Direct {
    template <class A>
    TERRACE_INLINE static void loop(A* __restrict out, const A* __restrict weight, const A* __restrict gradient,
                                    A* __restrict m, A* __restrict v, std::int64_t count, Factors<A> f) {
      for (std::int64_t i = 0; i < count; ++i) {
        const A g = gradient[i] * f.gradient_scale;                       // 1
        const A d = move_moments(f.moments, g, m[i], v[i]);               // 2 to 4
        out[i] = (f.correction * m[i]) / d + f.weight_decay * weight[i];  // 5
      }
    }
  };

  template <class A>
  void direct(ThreadPool& pool, const LayerWork<A>& work, const Scratch<A>& to) const {
    const auto& step = work.step();
    std::vector<Factors<A>> factors;
    for (const auto& tensor : work.tensors())
      factors.push_back({.gradient_scale = static_cast<A>(step.gradient_scale * tensor.gradient_scale),
                         .moments = AdamMoments<A>::of(s_, step),
                         .correction = static_cast<A>(1.0 / moment_correction(s_.beta1, step)),
                         .weight_decay = static_cast<A>(s_.weight_decay * tensor.decay)});
    work.each_tile(pool, [&](const typename LayerWork<A>::Piece& piece, const elementwise::Tile<A>& tile) {
      run_loop<Direct>(isa_, piece.directions, static_cast<const A*>(tile.weight), tile.gradient.numbers, tile.state0.numbers,
                       tile.state1.numbers, tile.count, factors[piece.tensor]);
    });
    work.sum_weights(pool, to.weights);
    work.sum_directions(pool, to.directions);
  }

  // ‖weights‖ / ‖direction‖; 1 for tensors without decay, and where the ratio says nothing.
  template <class A>
  static double trust(const LayerWork<A>& work, const Scratch<A>& from, std::size_t tensor) {
    if (work.tensors()[tensor].decay == 0) return 1;
    const double weights = work.folded(from.weights, tensor), direction = work.folded(from.directions, tensor);
    const bool known = weights > 0 && direction > 0 && std::isfinite(weights) && std::isfinite(direction);
    return known ? std::sqrt(weights) / std::sqrt(direction) : 1.0;
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimizerSettings& settings, Isa isa) {
  return std::make_unique<Lamb>(settings, isa);
}

}  // namespace terrace
