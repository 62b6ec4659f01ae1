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
  Mlp(const Transformer& config, std::int64_t block)
      : ResidualBranch("layers." + std::to_string(block) + ".mlp", config, block, parts_of(checked(config))) {}

 private:
  static Parts parts_of(const Transformer& config) {
    const auto results = up_results(config.activation);
    const bool in_tiles = config.mlp_tiles > 1 || config.mlp_row_tiles > 1;
    return {.norm = config.names.mlp_norm,
            .result_norm = config.names.mlp_result_norm,
            .in = config.names.up,
            .out = config.names.down,
            .in_outputs = std::vector(results, config.ffn),
            .in_ways = std::vector(results, config.tensor().ranks),
            .out_inputs = config.ffn,
            .in_result = "activation's input",
            .tiles = config.mlp_tiles,
            .inner_rows = in_tiles ? config.mlp_row_tiles : 0};
  }
  void make_middle(LayerContext& ctx, const LayerTensors&, TensorView activated, TensorView up) const override {
    ctx.math.activation(ctx.stream, config_.activation, activated, up);
  }
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dup, TensorView dactivated) const override {
    inner_grad(ctx, dup, dactivated, t.saved[kInResult]);
  }
  void inner_grad(LayerContext& ctx, TensorView dup, TensorView dactivated, TensorView up) const override {
    ctx.math.activation_grad(ctx.stream, config_.activation, dup, dactivated, up);
  }
};

}  // namespace terrace::layers
