// y = x + Σ gate · expert(norm(x)): the second half of a block whose MLP is a mixture of experts. A router chooses some experts
// for each token; the rows of a token go to them and come back weighted by the router's gates.
//
// A call runs one phase for the router, one for each expert, and one that brings the rows back. The number of an expert's rows
// is known only after the router has run: the first expert's phase waits for ctx.stream and reads ctx.report, and from then on
// products have exactly these rows. Tensors have room for the most rows that are possible, so no router's choice exceeds the
// plan.
//
// Every tensor rank has the whole router and routes alike; it has a part of each expert, as of an MLP. So the gradients of
// gates, and all that follow from them, are parts of sums, too; only the rank that leads adds the gradients of the router's own
// losses.
//
// Each expert rank has some of the experts (expert_rows.h). In a forward, these ranks tell each other how many rows they have
// for each expert; then rows go to the ranks of their experts, and results come back. In a backward, the gradients go the same
// ways. An expert computes the rows of each rank separately, so that they have the same bits as on one rank.
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/math/routing.h>
#include <terrace/parallel/layers/mlp/expert.h>
#include <terrace/parallel/layers/mlp/expert_rows.h>
#include <terrace/parallel/layers/parts/transformer_layer.h>

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
  [[nodiscard]] std::optional<Routing> routing() const override { return routing(1); }
  void forward(LayerContext& ctx, const LayerTensors& t) const override;
  void backward(LayerContext& ctx, const LayerTensors& t, Half half) const override;
  [[nodiscard]] std::vector<TensorSpec> cache(std::int64_t capacity) const override;
  void decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                   std::int64_t position) const override;

 private:
  // The numbers of a call's phases; kNone: an exchange that the call does not have. In a backward, the weight half follows.
  static constexpr std::uint32_t kNone = kAllPhases - 1, kRoute = 0;
  struct Steps {
    std::uint32_t merge = kNone, count = kNone, told = kNone, go = kNone, experts = 1, back = kNone, shared = 1, end = 1;
  };
  // Positions in work(). In a forward: the tensors of context ranks that merge, and those of expert ranks.
  struct ForwardWork {
    std::uint32_t counted = 0, counted_by_rank = 1, rows = 0, rows_by_rank = 1, sent = 2, results = 3;
  };
  enum BackwardWork : std::uint32_t { kDinputs, kSentGradients, kReturned };  // the last two only with expert ranks
  // What a router writes for the experts and the backward: positions in saved(), and in the cache of a generation.
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

  // True if context ranks merge their counts of a micro-batch, in a phase of a forward before the experts.
  [[nodiscard]] bool merges() const { return config_.context.ranks > 1 && config_.experts.balance_loss > 0; }
  [[nodiscard]] bool are_dealt() const { return config_.expert.ranks > 1; }
  [[nodiscard]] std::uint32_t here() const { return static_cast<std::uint32_t>(experts_.size()); }
  [[nodiscard]] std::uint32_t chosen_here() const { return here() - static_cast<std::uint32_t>(config_.experts.shared); }
  [[nodiscard]] Steps steps(LayerCall call) const;
  [[nodiscard]] std::uint32_t step_of(const Steps& s, std::uint32_t expert) const {
    return expert < chosen_here() ? s.experts + expert : s.shared + expert - chosen_here();
  }
  [[nodiscard]] ForwardWork forward_work() const;
  [[nodiscard]] Routing routing(std::int64_t tokens) const { return config_.experts.routing(tokens); }
  [[nodiscard]] ExpertRows rows(std::int64_t tokens) const { return {routing(tokens), config_.expert, tokens, config_.hidden}; }
  [[nodiscard]] TensorView routers_report(const LayerContext& ctx) const;  // without the numbers that expert ranks exchange
  [[nodiscard]] std::vector<TensorSpec> routed(std::int64_t tokens) const;

  void route(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, std::span<const TensorView> saved,
             TensorView dispatched, const Routing& routing, TensorView targets) const;
  void count(LayerContext& ctx, const LayerTensors& t) const;
  void learn(LayerContext& ctx, const LayerTensors& t) const;
  // `results`: those of rows that go back to other ranks.
  void run_experts(LayerContext& ctx, std::span<const TensorView> weights, std::span<const TensorView> saved,
                   TensorView results, const Steps& s) const;
  void bring_back(LayerContext& ctx, TensorView y, TensorView x, std::span<const TensorView> saved) const;
  void gates(LayerContext& ctx, const LayerTensors& t) const;
  void input_half(LayerContext& ctx, const LayerTensors& t) const;
  void weight_half(LayerContext& ctx, const LayerTensors& t) const;
  // Copies the rows of shared experts, which stay on this rank, to where these experts compute.
  void keep_shared(LayerContext& ctx, TensorView computed, TensorView own) const;
  [[nodiscard]] std::vector<Phase> forward_phases(LayerCall call, std::int64_t tokens) const;
  [[nodiscard]] std::vector<Phase> decode_phases() const;
  [[nodiscard]] std::vector<Phase> backward_phases(std::int64_t tokens) const;
  void add_weight_phases(std::vector<Phase>& all, std::int64_t tokens) const;
  [[nodiscard]] Phase counting() const;  // expert ranks exchange how many rows they have for each expert
  [[nodiscard]] Phase moving(std::int64_t tokens, PhaseTensor from, PhaseTensor to, bool returns) const;
  [[nodiscard]] Phase of_expert(std::int64_t tokens, std::uint32_t expert) const;  // this expert's scratch and work
  [[nodiscard]] double router_flops(std::int64_t tokens) const {
    return 2 * static_cast<double>(tokens * config_.hidden * config_.experts.count);
  }

  Norm norm_;
  Projection router_;
  std::vector<Expert> experts_;  // of this rank, the shared ones last
};

}  // namespace terrace::layers
