#include <terrace/parallel/layers/mlp/grid_mlp.h>

namespace terrace::layers {

GridMlp::GridMlp(const Transformer& config, std::int64_t block)
    : GridBranch("layers." + std::to_string(block) + ".mlp", config, block, parts_of(checked(config))) {}

GridBranch::Parts GridMlp::parts_of(const Transformer& config) {
  return {.norm = config.names.mlp_norm,
          .in = config.names.up,
          .out = config.names.down,
          .in_outputs = std::vector(up_results(config.activation), config.ffn),
          .out_inputs = config.ffn,
          .in_result = "activation's input"};
}

void GridMlp::middle(LayerContext& ctx, const LayerTensors& t, TensorView to) const {
  ctx.math.activation(ctx.stream, config_.activation, to, t.saved[kInResult]);
}

void GridMlp::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView din, TensorView dmiddle) const {
  ctx.math.activation_grad(ctx.stream, config_.activation, din, dmiddle, t.saved[kInResult]);
}

}  // namespace terrace::layers
