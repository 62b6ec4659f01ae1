// Attention over positions that lie on several ranks: between the products, each rank gets some heads of all positions, attends
// with them, and gives the results back (DeepSpeed-Ulysses, Jacobs et al. 2023).
//
//   forward    norm, in, rotate, pack │ all-to-all │ attend, pack │ all-to-all │ unpack │ out, residual
//   backward   out's input gradient, pack │ all-to-all │ attention's gradient, pack │ all-to-all │ unpack, rotate back │ …
//
// Within a ring (ulysses_ring.h), the ranks that exchange are neighbours, and "all positions" are those of their place in the
// ring. Slices of a sequence are in the order of ranks. Saved: q, k, v and the result of this rank's heads at all positions,
// and the result of all heads at this rank's positions.
//
// Owner, threads, errors: as transformer_layer.h. It cannot generate.
#pragma once

#include <functional>

#include <terrace/parallel/layers/attention/attention.h>
#include <terrace/parallel/layers/attention/head_deal.h>

namespace terrace::layers {

class Ulysses : public Attention {
 public:
  Ulysses(const Transformer& config, std::int64_t block);

 protected:
  enum MoreSaved : std::size_t { kHere = kLogSumExp + 1 };
  // Working tensors of either call: what is sent to the ranks with other heads, what comes from them, and the same on the way
  // back.
  enum Work : std::uint32_t { kToHeads, kOfHeads, kToPositions, kOfPositions };

  [[nodiscard]] std::vector<TensorSpec> saved_of_middle(BatchShape shape) const override;
  [[nodiscard]] bool saves_in_result() const override { return false; }
  [[nodiscard]] double middle_flops(BatchShape shape) const override;
  void save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const override;
  [[nodiscard]] std::optional<std::size_t> saved_middle() const override { return kHere; }
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dqkv, TensorView dattended) const override;
  [[nodiscard]] std::vector<TensorSpec> middle_work(LayerCall call, BatchShape shape) const override;
  [[nodiscard]] std::vector<std::uint32_t> begins_middle(LayerCall) const override { return {kToHeads}; }
  void describe_middle(CallSteps& steps, LayerCall call, BatchShape shape) const final;
  // Between the two exchanges: attends with this rank's heads.
  virtual void describe_heads(CallSteps& steps, LayerCall call, BatchShape shape) const;

  // The elements of a row of q, k and v, and of a row of the attention's result, for the heads of a rank.
  [[nodiscard]] std::int64_t qkv_row(int rank) const;
  [[nodiscard]] std::int64_t attended_row(int rank) const { return deal_.queries(rank).count * config_.head_dim(); }
  // Converts between [rank][sequence, slice] and [sequence, all positions].
  void order_positions(LayerContext& ctx, TensorView by_rank, TensorView by_sequence, Way way) const;
  // The part that this rank's heads fill of a room that is large enough for the first rank's.
  [[nodiscard]] TensorView of_heads(BatchShape shape, const TensorView& room, std::int64_t row) const;
  [[nodiscard]] TensorView log_sum_exp(BatchShape shape, const LayerTensors& t) const;

  const HeadDeal deal_;
  const int ranks_, rank_;

 private:
  void attend_heads(LayerContext& ctx, const LayerTensors& t, bool forward) const;
  // Convert between columns of all heads and blocks of rows, one block for each rank.
  void deal(LayerContext& ctx, TensorView all, TensorView blocks, Way way, bool with_keys) const;
  using Elements = std::function<std::int64_t(int rank)>;
  [[nodiscard]] PhaseExchange exchange(std::uint32_t from, std::uint32_t to, const Elements& sent,
                                       const Elements& received) const;
};

}  // namespace terrace::layers
