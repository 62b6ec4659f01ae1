// Attention on a grid of tensor ranks: this rank's heads of the whole sequences that its row of ranks has.
//
// Saved in addition to the tensors of every branch: the attention's result and the statistics of the softmax.
//
// Owner, threads, errors: as grid_branch.h.
#pragma once

#include <terrace/parallel/layers/attention/attend.h>
#include <terrace/parallel/layers/branch/grid_branch.h>

namespace terrace::layers {

class GridAttention final : public GridBranch {
 public:
  GridAttention(const Transformer& config, std::int64_t block);
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape shape) const override;

 private:
  const std::int64_t block_, window_;  // the block's number and window
  enum OwnSaved : std::size_t { kAttended = kOwn, kLogSumExp };
  static Parts parts_of(const Transformer& config);
  void save_middle(LayerContext& ctx, const LayerTensors& t) const override;
  void middle(LayerContext& ctx, const LayerTensors& t, TensorView to) const override;
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView din, TensorView dmiddle) const override;
  [[nodiscard]] double middle_flops(BatchShape shape) const override;
  [[nodiscard]] SequenceAttention attention(BatchShape shape) const;
  void rotate(LayerContext& ctx, TensorView qkv, bool inverse) const;
};

}  // namespace terrace::layers
