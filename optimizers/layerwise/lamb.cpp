// LAMB on the host.
#include <terrace/optimizers/layerwise/lamb.h>

#include <terrace/optimizers/loops/elementwise.h>

namespace terrace::rules {
namespace {

class Lamb final : public LayerOptimizer<Lamb>, public LambLayer {
 public:
  Lamb(const OptimizerSettings& settings, Isa isa) : LayerOptimizer(settings, isa) { require_adam_settings(kName, s_); }

  template <class A>
  void prepare(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& to) const {
    stream.submit([this, work, to, &pool = stream.device().pool()] { direct(pool, *work, to); });
  }
  template <class A>
  void finish(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& from) const {
    stream.submit([work, from, &pool = stream.device().pool()] {
      std::vector<typename LayerWork<A>::Descent> descents;
      for (std::size_t i = 0; i < work->tensors().size(); ++i) {
        const auto& t = work->tensors()[i];
        const auto ratio = trust(t.decay == 0, work->folded(from.weights, i), work->folded(from.directions, i));
        descents.push_back({.rate = work->step().learning_rate * t.rate * ratio, .decay = 1});
      }
      work->descend(pool, descents);
    });
  }

 private:
  struct Direct {
    template <class A>
    TERRACE_INLINE static void loop(A* __restrict out, const A* __restrict weight, const A* __restrict gradient,
                                    A* __restrict m, A* __restrict v, std::int64_t count, Factors<A> f) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = direction(f, weight[i], gradient[i], m[i], v[i]);
    }
  };

  template <class A>
  void direct(ThreadPool& pool, const LayerWork<A>& work, const Scratch<A>& to) const {
    std::vector<Factors<A>> all;
    for (const auto& tensor : work.tensors()) all.push_back(factors<A>(s_, work.step(), tensor));
    work.each_tile(pool, [&](const typename LayerWork<A>::Piece& piece, const elementwise::Tile<A>& tile) {
      run_loop<Direct>(isa_, piece.directions, static_cast<const A*>(tile.weight), tile.gradient.numbers, tile.state0.numbers,
                       tile.state1.numbers, tile.count, all[piece.tensor]);
    });
    work.sum_weights(pool, to.weights);
    work.sum_directions(pool, to.directions);
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimizerSettings& settings, Isa isa) {
  return std::make_unique<Lamb>(settings, isa);
}

}  // namespace terrace::rules
