#include <terrace/parallel/layers/mlp.h>

#include <algorithm>

namespace terrace::layers {
namespace {

// Positions in saved() and carried().
enum Saved : std::size_t { kStatistics, kUp };
enum Carried : std::size_t { kDup, kDnormed };
// Phases: of a forward, and of a backward.
enum Forward : std::uint32_t { kUpForward, kDownForward };
enum Backward : std::uint32_t { kDownInput, kUpInput, kDownWeight, kUpWeight };

}  // namespace

Mlp::Mlp(const Transformer& config, std::int64_t block)
    : TransformerLayer("layers." + std::to_string(block) + ".mlp", config),
      norm_(params_, config.names.in_block(block, config.names.mlp_norm), config),
      up_(params_, config.names.in_block(block, ""), config.names.up,
          std::vector<std::int64_t>(up_results(config.activation), config.ffn), config.hidden,
          {Projection::Split::Of::outputs, std::vector(up_results(config.activation), config.tensor.ranks)}, config.init_std,
          config),
      down_(params_, config.names.in_block(block, ""), config.names.down, {config.hidden}, config.ffn,
            {Projection::Split::Of::inputs, {config.tensor.ranks}}, config.residual_init_std(), config) {
  down_.set_unit(params_, 1);
}

std::vector<TensorSpec> Mlp::saved(BatchShape shape) const {
  return {norm_.statistics(shape.tokens()), {"activation's input", config_.dtype, {shape.tokens(), up_.outputs()}}};
}

std::vector<TensorSpec> Mlp::carried(BatchShape shape) const {
  return {{"gradient of activation's input", config_.dtype, {shape.tokens(), up_.outputs()}},
          {"gradient of norm's result", config_.dtype, {shape.tokens(), config_.hidden}}};
}

Mlp::Up::Up(const Mlp& block, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(block.config_.dtype, {rows, block.config_.hidden})), weights(block.up_.place_weights(arena)) {}

Mlp::Activated::Activated(const Mlp& block, ScratchArena& arena, std::int64_t rows)
    : activated(arena.take(block.config_.dtype, {rows, block.config_.ffn_here()})) {}

Mlp::UpInput::UpInput(const Mlp& block, ScratchArena& arena, std::int64_t) : weights(block.up_.place_weights(arena)) {}

Mlp::UpWeight::UpWeight(const Mlp& block, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(block.config_.dtype, {rows, block.config_.hidden})) {
  const auto spec = block.norm_.statistics(rows);
  statistics = arena.take(spec.dtype, spec.shape);
  gradient = block.up_.place_gradient(arena);
}

// The two products of a decode step use the rest of the scratch in turn.
Mlp::Decode::Decode(const Mlp& block, ScratchArena& arena, std::int64_t rows) {
  const auto spec = block.norm_.statistics(rows);
  statistics = arena.take(spec.dtype, spec.shape);
  up = arena.take(block.config_.dtype, {rows, block.up_.outputs()});
}

std::uint64_t Mlp::scratch_bytes(BatchShape shape) const {
  const auto n = shape.tokens();
  const auto decode = bytes_of<Decode>(*this, 1) + std::max(bytes_of<Up>(*this, 1), bytes_of<Activated>(*this, 1));
  return std::max({bytes_of<Up>(*this, n), bytes_of<Activated>(*this, n), bytes_of<UpInput>(*this, n),
                   bytes_of<UpWeight>(*this, n), decode});
}

double Mlp::forward_flops(BatchShape shape) const {
  const auto n = static_cast<double>(shape.tokens()), c = static_cast<double>(config_.hidden);
  return 2 * n * c * static_cast<double>(up_.outputs() + config_.ffn_here());
}

// The same on all tensor ranks, though only one of them adds the residual: their programs must be one program.
std::vector<Phase> Mlp::phases(LayerCall call, BatchShape shape) const {
  const auto n = shape.tokens();
  const double each = 2 * static_cast<double>(n) * static_cast<double>(config_.hidden);  // for an output
  const double up = each * static_cast<double>(up_.outputs()), down = each * static_cast<double>(config_.ffn_here());
  const auto up_input = params_of(norm_, up_), down_params = params_of(down_);
  if (call == LayerCall::forward)
    return {{.weights = up_input, .x = true, .saved = Access::overwrite, .scratch_bytes = bytes_of<Up>(*this, n), .flops = up},
            {.weights = down_params,
             .x = true,
             .y = Access::overwrite,
             .saved = Access::read,
             .scratch_bytes = bytes_of<Activated>(*this, n),
             .flops = down}};
  if (call == LayerCall::backward)
    return {{.half = Half::input,
             .weights = down_params,
             .dy = true,
             .saved = Access::read,
             .carried = Access::overwrite,
             .scratch_bytes = bytes_of<Activated>(*this, n),
             .flops = down},
            {.half = Half::input,
             .weights = up_input,
             .x = true,
             .dy = true,
             .dx = Access::overwrite,
             .saved = Access::read,
             .carried = Access::update,
             .scratch_bytes = bytes_of<UpInput>(*this, n),
             .flops = up},
            {.half = Half::weight,
             .gradients = down_params,
             .dy = true,
             .saved = Access::read,
             .scratch_bytes = bytes_of<Activated>(*this, n),
             .flops = down},
            {.half = Half::weight,
             .weights = params_of(norm_),
             .gradients = up_input,
             .x = true,
             .carried = Access::read,
             .scratch_bytes = bytes_of<UpWeight>(*this, n),
             .flops = up}};
  return {};
}

void Mlp::run_up(LayerContext& ctx, std::span<const TensorView> weights, TensorView up, TensorView x, TensorView statistics,
                 ScratchArena arena) const {
  const Up scratch(*this, arena, ctx.shape.tokens());
  norm_.forward(ctx, weights, scratch.normed, x, statistics);
  up_.forward(ctx, up_.prepare(ctx, weights, scratch.weights), up, scratch.normed);
}

void Mlp::run_down(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView up, TensorView x,
                   ScratchArena arena) const {
  const Activated scratch(*this, arena, ctx.shape.tokens());
  ctx.math.activation(ctx.stream, config_.activation, scratch.activated, up);
  const Accumulate how = begin_residual(ctx, y, x);
  down_.forward(ctx, down_.prepare(ctx, weights, {}), y, scratch.activated, how);
}

void Mlp::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {});
  const ScratchArena arena(ctx.scratch);
  if (ctx.runs(kUpForward)) run_up(ctx, t.weights, t.saved[kUp], t.x, t.saved[kStatistics], arena);
  if (ctx.runs(kDownForward)) run_down(ctx, t.weights, t.y, t.saved[kUp], t.x, arena);
}

void Mlp::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {});
  if (has(half, Half::input)) input_half(ctx, t);
  if (has(half, Half::weight)) weight_half(ctx, t);
}

void Mlp::input_half(LayerContext& ctx, const LayerTensors& t) const {
  const TensorView dup = t.carried[kDup], dnormed = t.carried[kDnormed];
  if (ctx.runs(kDownInput)) {
    ScratchArena arena(ctx.scratch);
    const TensorView dactivated = Activated(*this, arena, ctx.shape.tokens()).activated;
    down_.input_grad(ctx, down_.prepare(ctx, t.weights, {}), dactivated, t.dy);
    ctx.math.activation_grad(ctx.stream, config_.activation, dup, dactivated, t.saved[kUp]);
  }
  if (ctx.runs(kUpInput)) {
    ScratchArena arena(ctx.scratch);
    const UpInput scratch(*this, arena, ctx.shape.tokens());
    up_.input_grad(ctx, up_.prepare(ctx, t.weights, scratch.weights), dnormed, dup);
    const Accumulate how = begin_residual(ctx, t.dx, t.dy);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], how);
  }
}

void Mlp::weight_half(LayerContext& ctx, const LayerTensors& t) const {
  if (ctx.runs(kDownWeight)) {
    ScratchArena arena(ctx.scratch);
    const Activated scratch(*this, arena, ctx.shape.tokens());
    ctx.math.activation(ctx.stream, config_.activation, scratch.activated, t.saved[kUp]);
    down_.weight_grad(ctx, t.gradients, {}, t.dy, scratch.activated, t.accumulate);
  }
  if (ctx.runs(kUpWeight)) {
    ScratchArena arena(ctx.scratch);
    const UpWeight scratch(*this, arena, ctx.shape.tokens());
    norm_.forward(ctx, t.weights, scratch.normed, t.x, scratch.statistics);
    up_.weight_grad(ctx, t.gradients, scratch.gradient, t.carried[kDup], scratch.normed, t.accumulate);
    norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, scratch.statistics, t.accumulate);
  }
}

void Mlp::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                      std::int64_t position) const {
  check_decode(ctx, weights, cache, position);
  check("x", x, config_.dtype, {1, config_.hidden});
  check("y", y, config_.dtype, {1, config_.hidden});
  ScratchArena arena(ctx.scratch);
  const Decode scratch(*this, arena, 1);
  run_up(ctx, weights, scratch.up, x, scratch.statistics, arena);
  run_down(ctx, weights, y, scratch.up, x, arena);
}

}  // namespace terrace::layers
