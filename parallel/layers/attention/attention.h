// y = x + output(attention(rotary(qkv(norm(x))))), the first half of a transformer block; rotary only with rotary positions.
//
// Also saved for the backward: the attention's result and the statistics of the softmax. q, k and v are saved after the
// rotation.
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <terrace/parallel/layers/attention/head_deal.h>
#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {

class Attention : public ResidualBranch {
 public:
  Attention(const Transformer& config, std::int64_t block);

 protected:
  const std::int64_t block_, window_;  // the block's number and window
  enum OwnSaved : std::size_t { kAttended = kOwn, kLogSumExp };
  [[nodiscard]] std::vector<TensorSpec> saved_of_middle(BatchShape shape) const override;
  // Keys and values, each [kv_heads, capacity, head_dim].
  [[nodiscard]] std::vector<TensorSpec> cache_of_middle(std::int64_t capacity) const override;
  [[nodiscard]] double middle_flops(BatchShape shape) const override;
  [[nodiscard]] std::optional<std::size_t> saved_middle() const override { return kAttended; }
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dqkv, TensorView dattended) const override;
  void save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const override;
  // Rotates q and k, which are adjacent in a row, to their positions or back, if the transformer has rotary positions.
  void rotate(LayerContext& ctx, TensorView qkv, std::int64_t first_position, bool inverse) const;
  // Rotates to, or back from, the positions of this rank's slice in their documents.
  void rotate_slice(LayerContext& ctx, TensorView qkv, bool inverse) const;
  // Within whole sequences, separately for each document (documents.h): as if it were alone, with nothing computed between
  // documents. The log-sum-exps of a document are contiguous, [heads, positions]; documents follow in order.
  void attend(LayerContext& ctx, const AttentionShape& shape, TensorView out, TensorView lse, TensorView qkv) const;
  void attend_grad(LayerContext& ctx, const AttentionShape& shape, TensorView dqkv, TensorView dout, TensorView out,
                   TensorView lse, TensorView qkv) const;
  [[nodiscard]] Heads heads_here() const { return {config_.heads_here(), config_.kv_heads_here()}; }
  [[nodiscard]] AttentionShape attention_shape(BatchShape shape, const Heads& heads) const;
  [[nodiscard]] double pairs_twice(std::int64_t seq) const;  // twice the keys that a query of a sequence meets on average

 private:
  static Parts parts_of(const Transformer& config, std::int64_t block);
  // In generation: rotates q and k of a position, puts k and v into the cache, and attends.
  void make_middle(LayerContext& ctx, const LayerTensors& t, TensorView attended, TensorView qkv) const override;
};

}  // namespace terrace::layers
