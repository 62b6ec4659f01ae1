// Attention to keys and values that go round ranks, as phases of a layer: each rank attends with its queries to the slice that
// it has just got, and the results are merged by their log-sum-exps (ring attention, Liu et al. 2023; the zigzag of slices,
// context_parallel.h, gives all ranks equally much to do).
//
//   forward    hop, attend to the own slice │ hop, attend │ … │ attend, result
//   backward   hop, gradient of the own slice │ hop of gradients, hop, gradient, add │ … │ gradients home
//
// A hop lies before the attending that it runs beside: it fills one buffer while the other is attended to. In the backward the
// gradients of keys and values follow them round, so that a gradient is made apart and added when the sum has come.
// The sums are in the dtype of sums, also on their way.
//
// With a window, slices are runs of neighbours, and only as many hops are made as some query sees slices. With documents all
// hops are made, and a rank computes only what is in the documents of its queries.
//
// Owner:   a layer, whose working tensors it has from `first_work` on. Threads, errors: as the layer.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include <terrace/parallel/layer.h>
#include <terrace/parallel/layers/transformer.h>
#include <terrace/parallel/layers/views.h>

namespace terrace::layers {

class Ring {
 public:
  struct Heads {
    std::int64_t queries = 1, keys = 1;
  };
  // `room`: the most heads of any rank; all reserve as much, and count as many products, so that they plan alike.
  Ring(const Transformer& config, std::int64_t window, Heads here, Heads room, std::uint32_t first_work);

  // Shapes are those of what a rank attends with: all positions of its place in the ring.
  [[nodiscard]] std::vector<TensorSpec> work(LayerCall call, BatchShape shape) const;
  [[nodiscard]] std::vector<Phase> phases(LayerCall call, BatchShape shape) const;
  [[nodiscard]] std::uint32_t count(LayerCall call, BatchShape shape) const {  // of phases
    return static_cast<std::uint32_t>(steps(call, shape).size());
  }
  [[nodiscard]] double forward_flops(BatchShape shape) const;

  // Of a call. qkv: rows begin with the queries and end with keys and values.
  struct Tensors {
    TensorView qkv, lse, attended;
    std::span<const TensorView> work;  // the layer's
  };
  // What must be in the working tensors before the phases: the layer's phase that does it uses begins().
  [[nodiscard]] std::vector<std::uint32_t> begins(LayerCall call) const;
  void begin(LayerContext& ctx, const Tensors& t) const;
  [[nodiscard]] TensorView gradient(BatchShape shape, const Tensors& t) const;  // of the attention's result, in a backward
  void run(LayerContext& ctx, BatchShape shape, const Tensors& t, LayerCall call, std::uint32_t number) const;
  // After the phases of a backward: the gradient of qkv.
  [[nodiscard]] std::vector<PhaseWork> ends(BatchShape shape) const;
  void end(LayerContext& ctx, BatchShape shape, const Tensors& t, TensorView dqkv, ScratchArena& arena) const;
  [[nodiscard]] std::uint64_t end_bytes(BatchShape shape) const;  // of scratch

  // How often keys and values go on.
  [[nodiscard]] std::uint32_t hops(BatchShape shape) const;
  // Pairs of a query and a key that a rank of the ring computes of a sequence, with what has come by so many hops.
  [[nodiscard]] std::int64_t pairs(std::uint32_t rank, BatchShape shape, std::uint32_t hops) const;

 private:
  // Of both calls; then of a forward, and of a backward.
  enum Work : std::uint32_t { kKeys, kOtherKeys, kSum };
  enum BackwardWork : std::uint32_t { kGradient = 2, kOtherGradient, kDattended, kDqueries, kPart };
  struct Step {
    enum class What : std::uint8_t { keys_hop, attend, add, gradients_hop, gradients_home } what;
    std::uint32_t hops = 0;  // that its keys and values have made; of a hop, with this one
  };

  [[nodiscard]] std::vector<Step> steps(LayerCall call, BatchShape shape) const;
  [[nodiscard]] Phase phase(LayerCall call, BatchShape shape, const Step& step) const;
  // To the rank so many places on, and from the one as far behind.
  [[nodiscard]] PhaseExchange hop(std::uint32_t from, std::uint32_t to, std::uint32_t places, std::int64_t elements) const;
  // A run of a rank's positions, from `begin` of the sequence on, against one of another rank's.
  struct Meeting {
    AttentionBlock block;
    std::int64_t begin = 0;
  };
  // Those of a rank's attention to the slice of another one that has come by so many hops.
  [[nodiscard]] std::vector<Meeting> meetings(std::uint32_t rank, BatchShape shape, std::uint32_t hops) const;
  // f(a block of one document, the sequences of the batch that it is of), for all that is in a meeting. all_queries: also for
  // documents of which no key has come, so that every query is in a block.
  template <class F>
  static void each_document(const Documents& documents, const Meeting& meeting, bool all_queries, F&& f);
  [[nodiscard]] double products(BatchShape shape, std::uint32_t hops) const;
  // The rows of some sequences, and their log-sum-exps.
  [[nodiscard]] static TensorView rows_of(BatchShape shape, const TensorView& all, Block sequences);
  [[nodiscard]] TensorView sums_of(BatchShape shape, const TensorView& lse, Block sequences) const;
  void attend(LayerContext& ctx, BatchShape shape, const Tensors& t, std::uint32_t hops) const;
  void attend_grad(LayerContext& ctx, BatchShape shape, const Tensors& t, std::uint32_t hops) const;

  [[nodiscard]] std::int64_t keys_row(const Heads& of) const { return 2 * of.keys * head_dim_; }
  [[nodiscard]] std::int64_t queries_row(const Heads& of) const { return of.queries * head_dim_; }
  // What this rank's heads fill of a working tensor.
  [[nodiscard]] TensorView filled(BatchShape shape, const Tensors& t, std::uint32_t tensor, std::int64_t row) const {
    return part(t.work[first_ + tensor], 0, {shape.tokens(), row});
  }
  // Which of two buffers has what has made so many hops.
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
