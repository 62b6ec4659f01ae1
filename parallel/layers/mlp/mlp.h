// y = x + down(activation(up(norm(x)))), the second half of a transformer block. With SwiGLU, gate and up are one product.
//
// The activation's result is not saved for the backward: it is recomputed from its input. In tiles (of features, or of rows),
// its input is not saved, either (branch/residual_inner.cpp).
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {

class Mlp final : public ResidualBranch {
 public:
  Mlp(const Transformer& config, std::int64_t block);

 private:
  static Parts parts_of(const Transformer& config);
  void make_middle(LayerContext& ctx, const LayerTensors& t, TensorView activated, TensorView up) const override;
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dup, TensorView dactivated) const override;
  void inner_grad(LayerContext& ctx, TensorView dup, TensorView dactivated, TensorView up) const override;
};

}  // namespace terrace::layers
