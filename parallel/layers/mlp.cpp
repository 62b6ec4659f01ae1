#include <terrace/parallel/layers/mlp.h>

namespace terrace::layers {
namespace {

// Positions in saved() and carried().
enum Saved : std::size_t { kStatistics, kUp };
enum Carried : std::size_t { kDup, kDnormed };

}  // namespace

Mlp::Mlp(const Transformer& config, std::int64_t block)
    : TransformerLayer("layers." + std::to_string(block) + ".mlp", config),
      norm_(params_, config.names.in_block(block, config.names.mlp_norm), config),
      up_(params_, config.names.in_block(block, ""), config.names.up,
          std::vector<std::int64_t>(up_results(config.activation), config.ffn), config.hidden,
          {Projection::Split::Of::outputs, std::vector(up_results(config.activation), config.tensor.ranks)}, config.init_std,
          config),
      down_(params_, config.names.in_block(block, ""), config.names.down, {config.hidden}, config.ffn,
            {Projection::Split::Of::inputs, {config.tensor.ranks}}, config.residual_init_std(), config) {}

Activation Mlp::kind() const { return config_.activation; }

std::vector<TensorSpec> Mlp::saved(BatchShape shape) const {
  return {norm_.statistics(shape.tokens()), {"activation's input", config_.dtype, {shape.tokens(), up_.outputs()}}};
}

std::vector<TensorSpec> Mlp::carried(BatchShape shape) const {
  return {{"gradient of activation's input", config_.dtype, {shape.tokens(), up_.outputs()}},
          {"gradient of norm's result", config_.dtype, {shape.tokens(), config_.hidden}}};
}

Mlp::Forward::Forward(const Mlp& block, ScratchArena& arena, std::int64_t rows) {
  // The norm's result is done with before the activation starts, so they share the larger one's place.
  const std::int64_t width = std::max(block.config_.hidden, block.config_.ffn_here());
  const TensorView shared = arena.take(block.config_.dtype, {rows, width});
  normed = part(shared, 0, {rows, block.config_.hidden});
  activated = part(shared, 0, {rows, block.config_.ffn_here()});
  up_weights = block.up_.place_weights(arena);
}

Mlp::InputHalf::InputHalf(const Mlp& block, ScratchArena& arena, std::int64_t rows)
    : dactivated(arena.take(block.config_.dtype, {rows, block.config_.ffn_here()})),
      up_weights(block.up_.place_weights(arena)) {}

Mlp::WeightHalf::WeightHalf(const Mlp& block, ScratchArena& arena, std::int64_t rows) {
  const Forward shared(block, arena, rows);
  activated = shared.activated;
  normed = shared.normed;
  const auto spec = block.norm_.statistics(rows);
  statistics = arena.take(spec.dtype, spec.shape);
  up_gradient = block.up_.place_gradient(arena);
}

Mlp::Decode::Decode(const Mlp& block, ScratchArena& arena) {
  const auto spec = block.norm_.statistics(1);
  statistics = arena.take(spec.dtype, spec.shape);
  up = arena.take(block.config_.dtype, {1, block.up_.outputs()});
}

std::uint64_t Mlp::scratch_bytes(BatchShape shape) const {
  ScratchArena arena;
  Forward(*this, arena, shape.tokens());
  arena.reset();
  InputHalf(*this, arena, shape.tokens());
  arena.reset();
  WeightHalf(*this, arena, shape.tokens());
  arena.reset();
  Decode(*this, arena);
  Forward(*this, arena, 1);
  return arena.peak_bytes();
}

double Mlp::forward_flops(BatchShape shape) const {
  const auto n = static_cast<double>(shape.tokens()), c = static_cast<double>(config_.hidden);
  return 2 * n * c * static_cast<double>(up_.outputs() + config_.ffn_here());
}

void Mlp::run(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, TensorView statistics,
              TensorView up, ScratchArena& arena) const {
  const Forward scratch(*this, arena, ctx.shape.tokens());
  norm_.forward(ctx, weights, scratch.normed, x, statistics);
  up_.forward(ctx, up_.prepare(ctx, weights, scratch.up_weights), up, scratch.normed);
  ctx.math.activation(ctx.stream, kind(), scratch.activated, up);
  const Accumulate how = begin_residual(ctx, y, x);
  down_.forward(ctx, down_.prepare(ctx, weights, {}), y, scratch.activated, how);
}

void Mlp::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {});
  ScratchArena arena(ctx.scratch);
  run(ctx, t.weights, t.x, t.y, t.saved[kStatistics], t.saved[kUp], arena);
}

void Mlp::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {});
  if (has(half, Half::input)) input_half(ctx, t, ScratchArena(ctx.scratch));
  if (has(half, Half::weight)) weight_half(ctx, t, ScratchArena(ctx.scratch));
}

void Mlp::input_half(LayerContext& ctx, const LayerTensors& t, ScratchArena arena) const {
  const InputHalf scratch(*this, arena, ctx.shape.tokens());
  const TensorView dup = t.carried[kDup], dnormed = t.carried[kDnormed];

  down_.input_grad(ctx, down_.prepare(ctx, t.weights, {}), scratch.dactivated, t.dy);
  ctx.math.activation_grad(ctx.stream, kind(), dup, scratch.dactivated, t.saved[kUp]);
  up_.input_grad(ctx, up_.prepare(ctx, t.weights, scratch.up_weights), dnormed, dup);
  const Accumulate how = begin_residual(ctx, t.dx, t.dy);
  norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], how);
}

void Mlp::weight_half(LayerContext& ctx, const LayerTensors& t, ScratchArena arena) const {
  const WeightHalf scratch(*this, arena, ctx.shape.tokens());

  ctx.math.activation(ctx.stream, kind(), scratch.activated, t.saved[kUp]);
  down_.weight_grad(ctx, t.gradients, {}, t.dy, scratch.activated, t.accumulate);
  // `saved` is only read in a backward, so the statistics that come with the norm's result go elsewhere.
  norm_.forward(ctx, t.weights, scratch.normed, t.x, scratch.statistics);
  up_.weight_grad(ctx, t.gradients, scratch.up_gradient, t.carried[kDup], scratch.normed, t.accumulate);
  norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, t.saved[kStatistics], t.accumulate);
}

void Mlp::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                      std::int64_t position) const {
  check_decode(ctx, weights, cache, position);
  check("x", x, config_.dtype, {1, config_.hidden});
  check("y", y, config_.dtype, {1, config_.hidden});
  ScratchArena arena(ctx.scratch);
  const Decode scratch(*this, arena);
  run(ctx, weights, x, y, scratch.statistics, scratch.up, arena);
}

}  // namespace terrace::layers
