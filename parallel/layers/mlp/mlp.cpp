#include <terrace/parallel/layers/mlp/mlp.h>

#include <algorithm>

namespace terrace::layers {

Mlp::Mlp(const Transformer& config, std::int64_t block)
    : ResidualBranch("layers." + std::to_string(block) + ".mlp", config, block, parts_of(checked(config))) {}

ResidualBranch::Parts Mlp::parts_of(const Transformer& config) {
  const auto results = up_results(config.activation);
  return {.norm = config.names.mlp_norm,
          .result_norm = config.names.mlp_result_norm,
          .in = config.names.up,
          .out = config.names.down,
          .in_outputs = std::vector(results, config.ffn),
          .in_ways = std::vector(results, config.tensor().ranks),
          .out_inputs = config.ffn,
          .in_result = "activation's input"};
}

Mlp::Decode::Decode(const Mlp& layer, ScratchArena& arena, std::int64_t rows)
    : statistics(layer.take_statistics(arena, rows)), up(arena.take(layer.config_.dtype, {rows, layer.in_.outputs()})) {}

// The two products of a decode step use the rest of the scratch in turn.
std::uint64_t Mlp::scratch_bytes(BatchShape shape) const {
  const auto decode = bytes_of<Decode>(*this, 1) + std::max(in_bytes(1), middle_bytes(1) + add_position_bytes());
  return std::max(ResidualBranch::scratch_bytes(shape), decode);
}

double Mlp::forward_flops(BatchShape shape) const {
  const auto n = static_cast<double>(shape.tokens()), c = static_cast<double>(config_.hidden);
  return 2 * n * c * static_cast<double>(in_.outputs() + out_.inputs());
}

TensorView Mlp::activated(LayerContext& ctx, TensorView up, ScratchArena& arena) const {
  const auto result = take_middle(arena, ctx.shape.tokens());
  ctx.math.activation(ctx.stream, config_.activation, result, up);
  return result;
}

TensorView Mlp::middle(LayerContext& ctx, const LayerTensors& t, ScratchArena& arena) const {
  return activated(ctx, t.saved[kInResult], arena);
}

void Mlp::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dup, TensorView dactivated) const {
  ctx.math.activation_grad(ctx.stream, config_.activation, dup, dactivated, t.saved[kInResult]);
}

void Mlp::describe_decode(CallSteps& steps) const {
  steps.compute([this](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena arena(ctx.scratch);
    const Decode scratch(*this, arena, 1);
    run_in(ctx, t.weights, scratch.up, t.x, scratch.statistics, arena);
    const auto middle_result = activated(ctx, scratch.up, arena);
    add_position(ctx, t.weights, t.y, middle_result, t.x, arena);
  });
}

}  // namespace terrace::layers
