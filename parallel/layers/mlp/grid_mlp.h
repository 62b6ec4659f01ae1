// The MLP on a grid of tensor ranks. The activation's result is computed again in the backward.
//
// Owner, threads, errors: as grid_branch.h.
#pragma once

#include <terrace/parallel/layers/branch/grid_branch.h>

namespace terrace::layers {

class GridMlp final : public GridBranch {
 public:
  GridMlp(const Transformer& config, std::int64_t block);

 private:
  static Parts parts_of(const Transformer& config);
  void middle(LayerContext& ctx, const LayerTensors& t, TensorView to) const override;
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView din, TensorView dmiddle) const override;
};

}  // namespace terrace::layers
