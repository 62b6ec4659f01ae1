// Muon on the host.
#include <terrace/optimizers/layerwise/muon.h>

#include <terrace/optimizers/loops/elementwise.h>

namespace terrace::rules {
namespace {

struct Combine {
  template <class A>
  TERRACE_INLINE static void loop(A* __restrict y, const A* __restrict x, A a, A b, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = MuonLayer::combined(y[i], x[i], a, b);
  }
};
struct Scale {
  template <class A>
  TERRACE_INLINE static void loop(A* y, A a, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = a * y[i];
  }
};

// Splits `elements` into tasks of 64 Ki.
template <class Task>
void in_tasks(ThreadPool& pool, std::int64_t elements, const Task& task) {
  constexpr std::int64_t kTask = 65536;
  pool.parallel_for((elements + kTask - 1) / kTask,
                    [&](std::int64_t i) { task(i * kTask, std::min(kTask, elements - i * kTask)); });
}

class Muon final : public LayerOptimizer<Muon>, public MuonLayer {
 public:
  Muon(const OptimizerSettings& settings, Isa isa) : LayerOptimizer(settings, isa) {
    require_fraction(kName, "the momentum", s_.momentum);
    require_adam_settings(kName, s_);
  }

  template <class A>
  void prepare(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& to) const {
    stream.submit([this, work, moments = to.packed, &pool = stream.device().pool()] { gather(pool, *work, moments); });
  }
  template <class A>
  void finish(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, const Scratch<A>& to) const {
    auto& pool = stream.device().pool();
    for (std::size_t i = 0; i < work->tensors().size(); ++i)
      if (is_orthogonalised(work->tensors()[i])) orthogonalise(stream, work, i, to);
    stream.submit([this, work, &pool] {
      std::vector<typename LayerWork<A>::Descent> descents;
      for (const auto& t : work->tensors()) descents.push_back(descent<A>(s_, work->step(), t));
      work->descend(pool, descents);
    });
  }

 private:
  struct Momentum {
    template <class A>
    TERRACE_INLINE static void loop(A* __restrict out, const A* __restrict gradient, A* __restrict m, std::int64_t count,
                                    MomentumFactors<A> f) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = direction(f, gradient[i], m[i]);
    }
  };
  struct Adam {
    template <class A>
    TERRACE_INLINE static void loop(A* __restrict out, const A* __restrict gradient, A* __restrict m, A* __restrict v,
                                    std::int64_t count, AdamFactors<A> f) {
      for (std::int64_t i = 0; i < count; ++i) out[i] = direction(f, gradient[i], m[i], v[i]);
    }
  };

  // Updates the states and computes the directions: momentum, or AdamW's quotient.
  template <class A>
  void gather(ThreadPool& pool, const LayerWork<A>& work, std::span<A> moments) const {
    const auto& step = work.step();
    std::vector<std::vector<A*>> second(work.chunks());  // second moments of each part
    A* next = moments.data();
    for (std::size_t c = 0; c < work.chunks(); ++c)
      for (std::size_t p = 0; p < work.parts(c).size(); ++p) {
        second[c].push_back(next);
        if (!is_orthogonalised(work.tensors()[work.tensor_of(c, p)])) next += work.parts(c)[p].count;
      }
    work.load_packed(moments);
    work.each_tile(pool, [&](const typename LayerWork<A>::Piece& piece, const elementwise::Tile<A>& tile) {
      const auto& t = work.tensors()[piece.tensor];
      if (is_orthogonalised(t))
        run_loop<Momentum>(isa_, piece.directions, tile.gradient.numbers, tile.state0.numbers, tile.count,
                           momentum_factors<A>(s_, step, t));
      else
        run_loop<Adam>(isa_, piece.directions, tile.gradient.numbers, tile.state0.numbers,
                       second[piece.chunk][piece.part] + piece.element, tile.count, adam_factors<A>(s_, step, t));
    });
    work.store_packed(moments);
  }

  // Orthogonalises in place, by Newton-Schulz iterations. The Gram matrix is that of the shorter side.
  template <class A>
  void orthogonalise(Stream& stream, const std::shared_ptr<LayerWork<A>>& work, std::size_t tensor,
                     const Scratch<A>& to) const {
    auto& pool = stream.device().pool();
    const auto& t = work->tensors()[tensor];
    A* const x = work->directions(tensor);
    stream.submit([this, work, tensor, x, elements = t.elements(), &pool] {
      const auto inverse = static_cast<A>(inverse_norm(work->direction_squares(pool, tensor)));
      in_tasks(pool, elements,
               [&](std::int64_t first, std::int64_t count) { run_loop<Scale>(isa_, x + first, inverse, count); });
    });
    iterate(stream.device().math(), stream, t, x, to, [&](A* y, const A* other, double a, double b, std::int64_t count) {
      stream.submit([this, y, other, a = static_cast<A>(a), b = static_cast<A>(b), count, &pool] {
        in_tasks(pool, count,
                 [&](std::int64_t first, std::int64_t n) { run_loop<Combine>(isa_, y + first, other + first, a, b, n); });
      });
    });
  }
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(const OptimizerSettings& settings, Isa isa) {
  return std::make_unique<Muon>(settings, isa);
}

}  // namespace terrace::rules
