// Ring attention (Liu et al. 2023) as phases of a layer: keys and values go round the ranks, each rank attends with its queries
// to the slice that it has just received, and the results are merged by their log-sum-exps. The zigzag of slices
// (context_parallel.h) gives all ranks the same amount of work.
//
//   forward    hop, attend to the own slice │ hop, attend │ … │ attend, result
//   backward   hop, gradient of the own slice │ hop of gradients, hop, gradient, add │ … │ gradients home
//
// A hop is issued before the attention that it overlaps with: it fills one buffer while the rank attends to the other. In the
// backward, the gradients of keys and values travel behind them: a rank computes its part separately, and adds it when the sum
// has arrived. Sums travel in the dtype of sums, too.
//
// With a window, slices are contiguous, and hops end where no query sees a further slice. With documents, all hops are made,
// and a rank computes only what is in the documents of its queries.
//
// Owner:   a layer; the ring uses the layer's working tensors from `first_work` on. Threads, errors: as the layer.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <terrace/parallel/layers/attention/head_deal.h>
#include <terrace/parallel/layers/parts/scratch.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

// How often a slice is passed on: with a window only as far as a query sees. `slice`: positions at a place in the ring.
std::uint32_t hops_of(const ContextParallel& context, std::int64_t window, std::int64_t slice);
// Passes this many elements of a working tensor on by `places` of the ring.
PhaseExchange hop_of(const ContextParallel& context, std::uint32_t from, std::uint32_t to, std::uint32_t places,
                     std::int64_t elements);

class Ring {
 public:
  // `room`: the most heads of any rank. All ranks reserve memory and count products for these heads, so that their plans are
  // equal.
  Ring(const Transformer& config, std::int64_t window, Heads here, Heads room, std::uint32_t first_work);

  // A shape is that of the positions with which a rank attends: all positions of its place in the ring.
  [[nodiscard]] std::vector<TensorSpec> work(LayerCall call, BatchShape shape) const;
  [[nodiscard]] double forward_flops(BatchShape shape) const;

  // The tensors of a call. The rows of qkv begin with the queries and end with keys and values.
  struct OfRing {
    TensorView qkv, lse, attended;
    Tensors work;  // the layer's working tensors
  };
  // begin() fills the working tensors that the phases start from; begins() names them for the layer's phase that calls it.
  [[nodiscard]] std::vector<std::uint32_t> begins(LayerCall call) const;
  void begin(LayerContext& ctx, const OfRing& t) const;
  [[nodiscard]] TensorView gradient(BatchShape shape, const OfRing& t) const;  // of the attention's result, in a backward
  // The phases of the ring, with the tensors that `find` takes from those of a call.
  using Find = std::function<OfRing(const LayerTensors&)>;
  void describe(CallSteps& steps, LayerCall call, BatchShape shape, const Find& find) const;
  // end() writes the gradient of qkv after the phases of a backward; ends() names the working tensors that it reads.
  [[nodiscard]] std::vector<PhaseWork> ends(BatchShape shape) const;
  void end(LayerContext& ctx, BatchShape shape, const OfRing& t, TensorView dqkv, ScratchArena& arena) const;
  [[nodiscard]] std::uint64_t end_bytes(BatchShape shape) const;  // scratch of end()

  // How often keys and values are passed on.
  [[nodiscard]] std::uint32_t hops(BatchShape shape) const;
  // Pairs of a query and a key that a rank of the ring computes for a sequence, with the slice that has made this many hops.
  [[nodiscard]] std::int64_t pairs(std::uint32_t rank, BatchShape shape, std::uint32_t hops) const;

 private:
  // Working tensors of both calls; then those of a forward, and of a backward.
  enum Work : std::uint32_t { kKeys, kOtherKeys, kSum };
  enum BackwardWork : std::uint32_t { kGradient = 2, kOtherGradient, kDattended, kDqueries, kPart };
  // `hops`: those that the keys and values of a phase have made, including the phase itself if it is a hop.
  void describe_attend(CallSteps& steps, BatchShape shape, const Find& find, std::uint32_t hops) const;
  void describe_attend_grad(CallSteps& steps, BatchShape shape, const Find& find, std::uint32_t hops) const;
  // A run of a rank's positions, which begins at `begin` in the sequence, against a run of another rank's positions.
  struct Meeting {
    AttentionBlock block;
    std::int64_t begin = 0;
  };
  // All runs in a rank's attention to the slice that has made this many hops.
  [[nodiscard]] std::vector<Meeting> meetings(std::uint32_t rank, BatchShape shape, std::uint32_t hops) const;
  // Calls f(block of one document, sequences of the batch that the block is of) for all that is in a meeting. all_queries: also
  // for documents of which no key has come, so that every query is in a block.
  template <class F>
  static void each_document(const model::Documents& documents, const Meeting& meeting, bool all_queries, F&& f);
  [[nodiscard]] double products(BatchShape shape, std::uint32_t hops) const;
  // The rows of some sequences, and their log-sum-exps.
  [[nodiscard]] static TensorView rows_of(BatchShape shape, const TensorView& all, comm::Block sequences);
  [[nodiscard]] TensorView sums_of(BatchShape shape, const TensorView& lse, comm::Block sequences) const;
  void attend(LayerContext& ctx, BatchShape shape, const OfRing& t, std::uint32_t hops) const;
  void attend_grad(LayerContext& ctx, BatchShape shape, const OfRing& t, std::uint32_t hops) const;

  [[nodiscard]] std::int64_t keys_row(const Heads& of) const { return 2 * of.keys * head_dim_; }
  [[nodiscard]] std::int64_t queries_row(const Heads& of) const { return of.queries * head_dim_; }
  // The part of a working tensor that this rank's heads fill.
  [[nodiscard]] TensorView filled(BatchShape shape, const OfRing& t, std::uint32_t tensor, std::int64_t row) const {
    return part(t.work[first_ + tensor], 0, {shape.tokens(), row});
  }
  // Two buffers alternate: the one with the slice, or its gradient, that has made this many hops.
  static std::uint32_t keys_of(std::uint32_t hops) { return hops % 2 == 0 ? kKeys : kOtherKeys; }
  static std::uint32_t gradient_of(std::uint32_t hops) { return hops % 2 == 0 ? kGradient : kOtherGradient; }
  [[nodiscard]] std::uint32_t last_gradient(BatchShape shape) const {
    return hops(shape) == 0 ? std::uint32_t{kGradient} : gradient_of(hops(shape) + 1);
  }

  ContextParallel context_;
  std::int64_t window_, head_dim_;
  ScoreRule scores_;
  DType dtype_;
  Heads here_, room_;
  std::uint32_t first_;
};

}  // namespace terrace::layers
