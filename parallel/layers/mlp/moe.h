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
#include <string>
#include <vector>

#include <terrace/core/math/routing.h>
#include <terrace/parallel/layers/mlp/expert.h>
#include <terrace/parallel/layers/mlp/expert_rows.h>
#include <terrace/parallel/layers/parts/result_norm.h>
#include <terrace/parallel/layers/parts/transformer_layer.h>

namespace terrace::layers {

class Moe final : public TransformerLayer {
 public:
  Moe(const Transformer& config, std::int64_t block);

  [[nodiscard]] LayerFacts facts(BatchShape shape) const override;
  [[nodiscard]] std::vector<TensorSpec> cache(std::int64_t capacity) const override;

 private:
  void describe_call(CallSteps& steps, LayerCall call, BatchShape shape) const override;
  [[nodiscard]] bool adds_up() const override { return sums_result() && !config_.tensor().sequence; }
  [[nodiscard]] std::int64_t report_size() const { return rows(1).report_size(); }
  // What a router writes for the experts and the backward: positions in saved(), and in the cache of a generation.
  enum Saved : std::size_t { kStatistics, kLogits, kLogSums, kGates, kChosen, kRows, kInputs, kUp, kResults, kOfNorm };
  enum Carried : std::size_t { kDresults, kDup, kDlogits, kDnormed, kDresult };

  // What phases have in working tensors and in scratch.
  [[nodiscard]] TensorSpec whole_rows(std::string name, std::int64_t rows) const {
    return {std::move(name), config_.dtype, {rows, config_.hidden}};
  }
  [[nodiscard]] TensorSpec normed(std::int64_t tokens) const { return whole_rows("norm's result", tokens); }
  [[nodiscard]] TensorSpec dgates(std::int64_t tokens) const {
    return {"gradient of gates", accumulator_of(config_.dtype), {tokens, routing(tokens).slots()}};
  }

  // The working tensors of a forward: those of context ranks that merge, and those of expert ranks.
  struct ForwardRooms {
    std::uint32_t counted = 0, counted_by_rank = 0, rows = 0, rows_by_rank = 0, sent = 0, results = 0;
  };
  // Rows of an expert: the first one among all rows computed here, and the place of the first output. Outputs for other ranks
  // are ordered like the computed rows, all others like this rank's own rows.
  struct Rows {
    std::int64_t first = 0, count = 0, output = 0;
  };

  // The norm of the result: what it saved, and the gradient of the result, which is dy itself without the norm. sums_result():
  // tensor ranks add up the result before it is normed.
  [[nodiscard]] static ResultNorm::Saved of_norm(const LayerTensors& t) { return {t.saved[kOfNorm], t.saved[kOfNorm + 1]}; }
  [[nodiscard]] TensorView dresult(const LayerTensors& t) const { return result_norm_ ? t.carried[kDresult] : t.dy; }
  [[nodiscard]] bool sums_result() const { return config_.tensor().ranks > 1 && result_norm_; }

  // True if context ranks merge their counts of a micro-batch, in a phase of a forward before the experts.
  [[nodiscard]] bool merges() const { return config_.context().ranks > 1 && config_.experts.balance_loss > 0; }
  [[nodiscard]] bool are_dealt() const { return config_.expert().ranks > 1; }
  [[nodiscard]] std::uint32_t here() const { return static_cast<std::uint32_t>(experts_.size()); }
  [[nodiscard]] std::uint32_t chosen_here() const { return here() - static_cast<std::uint32_t>(config_.experts.shared); }
  // True if an expert also computes rows of other ranks.
  [[nodiscard]] bool is_dealt(std::uint32_t expert) const { return are_dealt() && expert < chosen_here(); }
  [[nodiscard]] Routing routing(std::int64_t tokens) const { return config_.experts.routing(tokens); }
  [[nodiscard]] ExpertRows rows(std::int64_t tokens) const {
    return {routing(tokens), config_.expert(), tokens, config_.hidden};
  }
  [[nodiscard]] std::vector<Rows> blocks(const LayerContext& ctx, std::uint32_t expert) const;  // none is empty
  [[nodiscard]] double* report(const LayerContext& ctx) const;
  [[nodiscard]] TensorView routers_report(const LayerContext& ctx) const;  // without the numbers that expert ranks exchange
  [[nodiscard]] std::vector<TensorSpec> routed(std::int64_t tokens) const;
  [[nodiscard]] double router_flops(std::int64_t tokens) const {
    return 2 * static_cast<double>(tokens * config_.hidden * config_.experts.count);
  }
  // Its scratch and work, in one of these calls.
  [[nodiscard]] Phase of_expert(std::int64_t tokens, std::uint32_t expert, Expert::Calls calls) const;

  void describe_forward(CallSteps& steps, std::int64_t tokens) const;
  void describe_decode(CallSteps& steps) const;
  [[nodiscard]] Phase router_phase(std::int64_t tokens) const;
  void route(LayerContext& ctx, const LayerTensors& t, const Routing& routing, TensorView targets, TensorView dispatched) const;
  void add_expert(CallSteps& steps, std::int64_t tokens, std::uint32_t expert, const ForwardRooms& rooms) const;
  [[nodiscard]] Phase expert_phase(std::int64_t tokens, std::uint32_t expert) const;
  void run_expert(LayerContext& ctx, const LayerTensors& t, std::uint32_t expert, TensorView results) const;
  void add_result(CallSteps& steps, std::int64_t tokens) const;

  void describe_input_half(CallSteps& steps, std::int64_t tokens) const;
  void begin_input_half(LayerContext& ctx, const LayerTensors& t, TensorView dispatched) const;
  void add_expert_input(CallSteps& steps, std::int64_t tokens, std::uint32_t expert, std::uint32_t dinputs) const;
  void add_input_result(CallSteps& steps, std::int64_t tokens, std::uint32_t dinputs) const;
  void describe_weight_half(CallSteps& steps, std::int64_t tokens) const;

  // What ranks exchange (moe_ranks.cpp).
  [[nodiscard]] ForwardRooms forward_rooms(CallSteps& steps, std::int64_t tokens) const;
  void count(LayerContext& ctx, const LayerTensors& t, const ForwardRooms& rooms) const;
  void learn(LayerContext& ctx, const LayerTensors& t, const ForwardRooms& rooms) const;
  void exchange_counts(CallSteps& steps, const ForwardRooms& rooms) const;
  void move_rows(CallSteps& steps, Half half, std::int64_t tokens, PhaseTensor from, PhaseTensor to,
                 PhaseExchange::Told told) const;
  // Copies the rows of shared experts, which stay on this rank, to where these experts compute.
  void keep_shared(LayerContext& ctx, TensorView computed, TensorView own) const;

  Norm norm_;
  Projection router_;
  std::vector<Expert> experts_;  // of this rank, the shared ones last
  ResultNorm result_norm_;
};

}  // namespace terrace::layers
