// Enqueues the update of a whole layer on a GPU's stream: kernels, and between them the device's own matrix products. `Kernels`
// has
//
//   template <class Kernel, class Args> void run(const LaunchShape&, const Args&) const;  // enqueues; copies the arguments
//
// so that tests can run the same code on the emulated lane.
//
// Internal to optimizers/. Threads: as Stream. Errors: as Optimizer::enqueue_layer().
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/optimizers/cuda/layer_kernels.h>
#include <terrace/optimizers/cuda/update_launch.h>

namespace terrace::cuda {

template <class A, class Kernels>
class LayerOnGpu {
 public:
  LayerOnGpu(const Kernels& kernels, Stream& stream, const UpdateMaps& maps, const OptimizerSettings& settings,
             const UpdateStep& step)
      : kernels_(kernels), stream_(stream), maps_(maps), s_(settings), step_(step) {}

  void enqueue(const rules::LayerHalves<rules::LambLayer, A>& h) const {
    if (h.prepare) {
      direct<LambDirects>(*h.prepare,
                          [&](const UpdateTensor& t, const UpdatePart&) { return rules::LambLayer::factors<A>(s_, step_, t); });
      sum_weights(*h.prepare, h.scratch.weights);
      const auto stride = h.prepare->chunk_elements();
      for (std::size_t t = 0; t < h.prepare->tensors().size(); ++t)
        sum_tensor(*h.prepare, t, &h.scratch.directions[block(*h.prepare, t)],
                   DirectionSource<A>{h.prepare->directions_of(0), stride});
    }
    if (!h.finish) return;
    for (std::size_t i = 0; i < h.finish->tensors().size(); ++i) {
      const auto& t = h.finish->tensors()[i];
      double* const rate = &h.scratch.weights[block(*h.finish, i)];
      fold(rate, rules::blocks_of(t), KeepSum{rate});
      fold(&h.scratch.directions[block(*h.finish, i)], rules::blocks_of(t),
           LambRate{rate, step_.learning_rate * t.rate, t.decay == 0});
    }
    descend(*h.finish, [&](std::size_t t) { return Descends::Factors<A>{&h.scratch.weights[block(*h.finish, t)], 0, 1}; });
  }

  void enqueue(const rules::LayerHalves<rules::AdafactorLayer, A>& h) const {
    if (h.prepare) {
      direct<AdafactorDirects>(*h.prepare, [&](const UpdateTensor& t, const UpdatePart&) {
        return AdafactorDirects::Factors<A>{rules::AdafactorLayer::gradient_scale<A>(step_, t)};
      });
      sum_weights(*h.prepare, h.scratch.weights);
    }
    if (!h.finish) return;
    const auto& work = *h.finish;
    load_packed(work, h.scratch.packed);
    A* moment = h.scratch.packed.data();
    for (std::size_t i = 0; i < work.tensors().size(); ++i) {
      const auto& t = work.tensors()[i];
      const double towards = rules::AdafactorLayer::towards(step_);
      if (t.is_matrix())
        divide_matrix(t, work.directions(i), moment, towards, h.scratch);
      else
        each(t.elements(), DivideVector<A>{work.directions(i), moment, towards});
      moment += rules::AdafactorLayer::numbers_of(t);
      double* const rate = &h.scratch.weights[block(work, i)];
      sum_all_of_tensor(work, i, h.scratch.directions.data());
      fold(rate, rules::blocks_of(t), KeepSum{rate});
      fold(h.scratch.directions.data(), rules::blocks_of(t),
           AdafactorRate{rate, step_.learning_rate * t.rate, static_cast<double>(t.elements())});
    }
    store_packed(work, h.scratch.packed);
    descend(work, [&](std::size_t i) {
      const auto& t = work.tensors()[i];
      const double decay = 1.0 - step_.learning_rate * t.rate * (s_.weight_decay * t.decay);
      return Descends::Factors<A>{&h.scratch.weights[block(work, i)], 0, static_cast<A>(decay)};
    });
  }

  void enqueue(const rules::LayerHalves<rules::MuonLayer, A>& h) const {
    if (h.prepare) {
      load_packed(*h.prepare, h.scratch.packed);
      A* second = h.scratch.packed.data();
      direct<MuonDirects>(*h.prepare, [&](const UpdateTensor& t, const UpdatePart& part) {
        const bool matrix = rules::MuonLayer::is_orthogonalised(t);
        const MuonDirects::Factors<A> factors{rules::MuonLayer::momentum_factors<A>(s_, step_, t),
                                              rules::MuonLayer::adam_factors<A>(s_, step_, t), matrix ? nullptr : second};
        if (!matrix) second += part.count;
        return factors;
      });
      store_packed(*h.prepare, h.scratch.packed);
    }
    if (!h.finish) return;
    for (std::size_t i = 0; i < h.finish->tensors().size(); ++i)
      if (rules::MuonLayer::is_orthogonalised(h.finish->tensors()[i])) orthogonalise(*h.finish, i, h.scratch);
    descend(*h.finish, [&](std::size_t i) {
      const auto d = rules::MuonLayer::descent<A>(s_, step_, h.finish->tensors()[i]);
      return Descends::Factors<A>{nullptr, static_cast<A>(d.rate), static_cast<A>(d.decay)};
    });
  }

 private:
  using Work = rules::LayerWork<A>;

  static std::size_t block(const Work& work, std::size_t tensor) { return static_cast<std::size_t>(work.first_block(tensor)); }

  template <class Body>
  void each(std::int64_t count, const Body& body) const {
    if (count == 0) return;
    kernels_.template run<ForEach<Body>>(
        {.blocks = {ceil_div(count, ForEach<Body>::kThreads), 1, 1}, .threads = ForEach<Body>::kThreads},
        ForEachArgs<Body>{body, count});
  }
  template <class T, class Body>
  void fold(const T* numbers, std::int64_t count, const Body& body) const {
    using Kernel = FoldInto<T, Body>;
    kernels_.template run<Kernel>({.threads = Kernel::kThreads, .shared_bytes = Kernel::kSharedBytes},
                                  FoldIntoArgs<T, Body>{numbers, count, body});
  }

  // Computes the directions of this rank's chunks; calls factors_of() once for each part, in order.
  template <class Rule, class FactorsOf>
  void direct(const Work& work, const FactorsOf& factors_of) const {
    for (std::size_t c = 0; c < work.chunks(); ++c) {
      std::vector<typename Rule::template Factors<A>> factors;
      for (std::size_t p = 0; p < work.parts(c).size(); ++p)
        factors.push_back(factors_of(work.tensors()[work.tensor_of(c, p)], work.parts(c)[p]));
      launch_tiles<Rule, A>(kernels_, maps_, step_, work.chunk(c), work.directions_of(c),
                            [&](std::size_t p) { return factors[p]; });
    }
  }
  template <class FactorsOf>
  void descend(const Work& work, const FactorsOf& of_tensor) const {
    for (std::size_t c = 0; c < work.chunks(); ++c)
      launch_tiles<Descends, A>(kernels_, maps_, step_, work.chunk(c), static_cast<A*>(nullptr),
                                [&](std::size_t p) { return of_tensor(work.tensor_of(c, p)); });
  }

  template <class Source>
  void sum_blocks(const Work& work, const UpdateTensor& t, std::int64_t first_block, std::int64_t blocks, double* out,
                  const Source& source, const LayerShare& share) const {
    using Kernel = BlockSquares<Source>;
    const BlockSquaresArgs<Source> args{.out = out + first_block,
                                        .first_block = first_block,
                                        .blocks = blocks,
                                        .first = t.first,
                                        .end = t.first + t.elements(),
                                        .chunk_elements = work.chunk_elements(),
                                        .ranks = share.ranks,
                                        .rank = share.rank,
                                        .source = source};
    static_assert(sizeof args <= 4096);
    kernels_.template run<Kernel>(
        {.blocks = {ceil_div(blocks * kSquareLanes, Kernel::kThreads), 1, 1}, .threads = Kernel::kThreads}, args);
  }
  template <class Source>
  void sum_tensor(const Work& work, std::size_t tensor, double* out, const Source& source) const {
    const auto& t = work.tensors()[tensor];
    if (t.elements() != 0) sum_blocks(work, t, 0, rules::blocks_of(t), out, source, work.share());
  }
  // Requires the directions of all ranks.
  void sum_all_of_tensor(const Work& work, std::size_t tensor, double* out) const {
    const auto& t = work.tensors()[tensor];
    const DirectionSource<A> source{work.directions(tensor) - t.first, work.chunk_elements()};
    if (t.elements() != 0) sum_blocks(work, t, 0, rules::blocks_of(t), out, source, {});
  }
  // One launch handles at most kMaxSourceChunks chunks, so the work is split into launches between blocks.
  void sum_weights(const Work& work, std::span<double> out) const {
    const auto& share = work.share();
    for (std::size_t i = 0; i < work.tensors().size(); ++i) {
      const auto& t = work.tensors()[i];
      const auto all = t.elements() == 0 ? 0 : rules::blocks_of(t);
      const auto run_block = t.first / kSumBlock;
      for (std::int64_t b = 0; b < all;) {
        // This rank's chunk in the group of chunks, one of each rank, that has the block's begin; and how many blocks end
        // within the chunks of one launch.
        const auto begin = std::max(t.first, (run_block + b) * kSumBlock);
        const auto first_chunk = begin / work.chunk_elements() / share.ranks;
        const auto known_end = (first_chunk + kMaxSourceChunks) * share.ranks * work.chunk_elements();
        const auto blocks = std::min(all - b, known_end / kSumBlock - run_block - b);
        if (blocks <= 0) throw std::logic_error("update on a GPU: a block of sums lies in too many chunks");
        WeightSource<A> source{.first_chunk = first_chunk, .elements = work.chunk_elements()};
        for (std::int64_t c = 0; c < kMaxSourceChunks && first_chunk + c < static_cast<std::int64_t>(work.chunks()); ++c) {
          const auto& chunk = work.chunk(static_cast<std::size_t>(first_chunk + c));
          source.parameter_format = chunk.parameter.format;
          source.master_format = chunk.master.format;
          source.parameter[c] = chunk.parameter.data;
          source.master[c] = chunk.master.data;
        }
        sum_blocks(work, t, b, blocks, &out[block(work, i)], source, share);
        b += blocks;
      }
    }
  }

  // Copies the packed state's numbers out of their chunks, and back. Before the first update they are zeros.
  void load_packed(const Work& work, std::span<A> numbers) const {
    std::size_t at = 0;
    for (const auto& chunk : work.packed()) {
      auto* const stored = reinterpret_cast<A*>(chunk.data);
      if (step_.first) each(chunk.elements, CopyNumbers<A>{stored, nullptr});
      const auto count = std::min(static_cast<std::size_t>(chunk.elements), numbers.size() - at);
      each(static_cast<std::int64_t>(count), CopyNumbers<A>{numbers.data() + at, stored});
      at += count;
    }
  }
  void store_packed(const Work& work, std::span<const A> numbers) const {
    std::size_t at = 0;
    for (const auto& chunk : work.packed()) {
      const auto count = std::min(static_cast<std::size_t>(chunk.elements), numbers.size() - at);
      each(static_cast<std::int64_t>(count), CopyNumbers<A>{reinterpret_cast<A*>(chunk.data), numbers.data() + at});
      at += count;
    }
  }

  void divide_matrix(const UpdateTensor& t, A* g, A* moment, double towards,
                     const rules::AdafactorLayer::Scratch<A>& scratch) const {
    double* const sums = scratch.sums.data();
    A* const factors = scratch.factors.data();
    const auto both = t.rows + t.columns;
    using Rows = RowSquares<A>;
    kernels_.template run<Rows>({.blocks = {ceil_div(t.rows * kSquareLanes, Rows::kThreads), 1, 1}, .threads = Rows::kThreads},
                                RowSquaresArgs<A>{sums, g, t.rows, t.columns});
    each(t.columns, ColumnSquares<A>{sums + t.rows, g, t.rows, t.columns});
    each(both, MoveMoments<A>{moment, sums, t.rows, t.columns, towards});
    fold(static_cast<const A*>(moment), t.rows, KeepMean{sums, static_cast<double>(t.rows)});
    each(both, MomentFactors<A>{factors, moment, sums, t.rows});
    each(t.elements(), DivideMatrix<A>{g, factors, t.rows, t.columns});
  }

  // Newton-Schulz iterations in place, as on the host. The blocks of squares, and the inverse norm made of them, use the memory
  // of the first product.
  void orthogonalise(const Work& work, std::size_t tensor, const rules::MuonLayer::Scratch<A>& scratch) const {
    const auto& t = work.tensors()[tensor];
    A* const x = work.directions(tensor);
    auto* const squares = reinterpret_cast<double*>(scratch.product.data());
    sum_all_of_tensor(work, tensor, squares);
    fold(squares, rules::blocks_of(t), InverseNorm{squares});
    each(t.elements(), ScaleNumbers<A>{x, squares});
    rules::MuonLayer::iterate(stream_.device().math(), stream_, t, x, scratch,
                              [&](A* y, const A* other, double a, double b, std::int64_t count) {
                                each(count, CombineNumbers<A>{y, other, static_cast<A>(a), static_cast<A>(b)});
                              });
  }

  const Kernels& kernels_;
  Stream& stream_;
  const UpdateMaps maps_;
  const OptimizerSettings& s_;
  const UpdateStep& step_;
};

template <class A, class Kernels>
void enqueue_layer_update(const Kernels& kernels, Stream& stream, const UpdateMaps& maps, std::string_view optimizer,
                          const OptimizerSettings& settings, const UpdateStep& step, const LayerUpdate& layer) {
  const LayerOnGpu<A, Kernels> gpu(kernels, stream, maps, settings, step);
  if (optimizer == rules::LambLayer::kName)
    return gpu.enqueue(rules::halves_of<rules::LambLayer, A>(rules::best_isa(), step, layer));
  if (optimizer == rules::AdafactorLayer::kName)
    return gpu.enqueue(rules::halves_of<rules::AdafactorLayer, A>(rules::best_isa(), step, layer));
  if (optimizer == rules::MuonLayer::kName)
    return gpu.enqueue(rules::halves_of<rules::MuonLayer, A>(rules::best_isa(), step, layer));
  throw std::logic_error("optimizer \"" + std::string(optimizer) + "\" has no update of whole layers");
}
template <class Kernels>
void enqueue_layer_update(const Kernels& kernels, Stream& stream, const UpdateMaps& maps, std::string_view optimizer,
                          const OptimizerSettings& settings, const UpdateStep& step, const LayerUpdate& layer) {
  if (layer.chunks.empty()) return;
  if (layer.chunks.front().parameter.format == rules::Format::fp64)
    enqueue_layer_update<double>(kernels, stream, maps, optimizer, settings, step, layer);
  else
    enqueue_layer_update<float>(kernels, stream, maps, optimizer, settings, step, layer);
}

}  // namespace terrace::cuda
