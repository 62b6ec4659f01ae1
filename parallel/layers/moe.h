// y = x + Σ gate · expert(norm(x)): the second half of a block whose MLP is a mixture of experts. A router chooses some experts
// for each token; the rows of a token go to them and come back weighted by the router's gates.
//
// A call runs one phase for the router, one for each expert, and one that brings the rows back. How many rows an expert has is
// known once the router has run: the first expert's phase waits for ctx.stream, reads ctx.report, and the calls after it issue
// products of just these rows. Tensors are as long as the most rows that can be, so no router's choice exceeds the plan.
//
// Tensor ranks route alike, each with the whole router, and have a part of each expert, as of an MLP. So all that follows from
// gates' gradients is a part of a sum, too; the gradients of the router's own losses are added by the rank that leads.
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/routing.h>
#include <terrace/parallel/layers/expert.h>
#include <terrace/parallel/layers/transformer_layer.h>

namespace terrace::layers {

class Moe final : public TransformerLayer {
 public:
  Moe(const Transformer& config, std::int64_t block);

  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape shape) const override;
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape shape) const override;
  [[nodiscard]] std::vector<TensorSpec> work(LayerCall call, BatchShape shape) const override;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  [[nodiscard]] double forward_flops(BatchShape shape) const override;
  [[nodiscard]] std::vector<Phase> phases(LayerCall call, BatchShape shape) const override;
  [[nodiscard]] std::int64_t report_size() const override;
  void forward(LayerContext& ctx, const LayerTensors& t) const override;
  void backward(LayerContext& ctx, const LayerTensors& t, Half half) const override;
  [[nodiscard]] std::vector<TensorSpec> cache(std::int64_t capacity) const override;
  void decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                   std::int64_t position) const override;

 private:
  // The first phases of a call. In a forward of context ranks the second one is an exchange.
  enum First : std::uint32_t { kRoute, kMerged };
  enum Work : std::size_t { kCounted, kCountedByRank };  // of a forward that merges
  // What a router leaves for the experts and the backward: positions in saved(), and in the cache of a generation.
  enum Saved : std::size_t { kStatistics, kLogits, kLogSums, kGates, kChosen, kRows, kInputs, kUp, kResults };
  enum Carried : std::size_t { kDresults, kDup, kDlogits, kDnormed };

  // The scratch of a phase.
  struct Route {
    Route(const Moe& layer, ScratchArena& arena, std::int64_t rows);
    TensorView normed;
  };
  struct Gates {
    Gates(const Moe& layer, ScratchArena& arena, std::int64_t rows);
    TensorView dgates;
  };
  struct RouterWeight {
    RouterWeight(const Moe& layer, ScratchArena& arena, std::int64_t rows);
    TensorView normed, statistics;
  };

  // Whether context ranks merge what they counted of a micro-batch, in a phase of a forward before the experts'.
  [[nodiscard]] bool merges() const { return config_.context.ranks > 1 && config_.experts.balance_loss > 0; }
  [[nodiscard]] std::uint32_t first_expert(LayerCall call) const {
    return call == LayerCall::forward && merges() ? kMerged + 1 : kRoute + 1;
  }
  void run_first(LayerContext& ctx, const LayerTensors& t) const;
  [[nodiscard]] std::uint32_t experts() const { return static_cast<std::uint32_t>(experts_.size()); }
  [[nodiscard]] std::int64_t most_rows(std::int64_t tokens) const;  // of all experts together
  [[nodiscard]] std::int64_t most_rows_of(std::int64_t tokens, std::uint32_t expert) const;
  [[nodiscard]] double usual_rows_of(std::int64_t tokens, std::uint32_t expert) const;  // if all are chosen equally often
  [[nodiscard]] Routing routing(std::int64_t tokens) const;
  [[nodiscard]] std::vector<TensorSpec> routed(std::int64_t tokens) const;
  [[nodiscard]] Block rows_of_expert(const LayerContext& ctx, std::uint32_t expert) const;

  void route(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, std::span<const TensorView> saved,
             const Routing& routing) const;
  void run_experts(LayerContext& ctx, std::span<const TensorView> weights, std::span<const TensorView> saved,
                   std::uint32_t first) const;
  void bring_back(LayerContext& ctx, TensorView y, TensorView x, std::span<const TensorView> saved) const;
  void input_half(LayerContext& ctx, const LayerTensors& t) const;
  void weight_half(LayerContext& ctx, const LayerTensors& t) const;
  [[nodiscard]] std::vector<Phase> forward_phases(LayerCall call, std::int64_t tokens) const;
  [[nodiscard]] std::vector<Phase> decode_phases() const;
  [[nodiscard]] std::vector<Phase> backward_phases(std::int64_t tokens) const;

  Norm norm_;
  Projection router_;
  std::vector<Expert> experts_;  // the shared ones last
};

}  // namespace terrace::layers
