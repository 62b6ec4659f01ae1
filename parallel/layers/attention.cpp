#include <terrace/parallel/layers/attention.h>

#include <algorithm>

namespace terrace::layers {
namespace {

// Positions in saved() and carried().
enum Saved : std::size_t { kStatistics, kQkv, kAttended, kLogSumExp };
enum Carried : std::size_t { kDqkv, kDnormed };
// Phases: of a forward, and of a backward.
enum Forward : std::uint32_t { kQkvForward, kOutputForward };
enum Backward : std::uint32_t { kOutputInput, kQkvInput, kOutputWeight, kQkvWeight };

// The widths of q, k and v.
std::vector<std::int64_t> qkv_outputs(const Transformer& config) {
  const std::int64_t kv = config.kv_heads * config.head_dim();
  return {config.hidden, kv, kv};
}
// Each rank has whole heads.
Projection::Split qkv_split(const Transformer& config) {
  return {Projection::Split::Of::outputs, {config.tensor.ranks, config.kv_ways(), config.kv_ways()}};
}

}  // namespace

Attention::Attention(const Transformer& config, std::int64_t block)
    : TransformerLayer("layers." + std::to_string(block) + ".attention", config),
      norm_(params_, config.names.in_block(block, config.names.attention_norm), config),
      qkv_(params_, config.names.in_block(block, ""), config.names.qkv, qkv_outputs(config), config.hidden, qkv_split(config),
           config.init_std, config),
      output_(params_, config.names.in_block(block, ""), config.names.attention_output, {config.hidden}, config.hidden,
              {Projection::Split::Of::inputs, {config.tensor.ranks}}, config.residual_init_std(), config) {
  output_.set_unit(params_, 1);
}

AttentionShape Attention::attention_shape(BatchShape shape) const {
  return {shape.batch, shape.seq, config_.heads_here(), config_.kv_heads_here(), config_.head_dim()};
}

std::vector<TensorSpec> Attention::saved(BatchShape shape) const {
  const std::int64_t n = shape.tokens();
  return {norm_.statistics(n),
          {"q, k and v", config_.dtype, {n, qkv_.outputs()}},
          {"attention's result", config_.dtype, {n, config_.attended_here()}},
          {"log-sum-exp of scores", accumulator_of(config_.dtype), {shape.batch, config_.heads_here(), shape.seq}}};
}

std::vector<TensorSpec> Attention::carried(BatchShape shape) const {
  const std::int64_t n = shape.tokens();
  return {{"gradient of q, k and v", config_.dtype, {n, qkv_.outputs()}},
          {"gradient of norm's result", config_.dtype, {n, config_.hidden}}};
}

Attention::Qkv::Qkv(const Attention& block, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(block.config_.dtype, {rows, block.config_.hidden})), weights(block.qkv_.place_weights(arena)) {}

Attention::Attended::Attended(const Attention& block, ScratchArena& arena, std::int64_t rows)
    : gradient(arena.take(block.config_.dtype, {rows, block.config_.attended_here()})) {}

Attention::QkvInput::QkvInput(const Attention& block, ScratchArena& arena, std::int64_t)
    : weights(block.qkv_.place_weights(arena)) {}

Attention::QkvWeight::QkvWeight(const Attention& block, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(block.config_.dtype, {rows, block.config_.hidden})) {
  const auto spec = block.norm_.statistics(rows);
  statistics = arena.take(spec.dtype, spec.shape);
  gradient = block.qkv_.place_gradient(arena);
}

Attention::Decode::Decode(const Attention& block, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(block.config_.dtype, {rows, block.config_.hidden})) {
  const auto spec = block.norm_.statistics(rows);
  statistics = arena.take(spec.dtype, spec.shape);
  qkv_weights = block.qkv_.place_weights(arena);
  qkv = arena.take(block.config_.dtype, {rows, block.qkv_.outputs()});
  attended = arena.take(block.config_.dtype, {rows, block.config_.attended_here()});
}

std::uint64_t Attention::scratch_bytes(BatchShape shape) const {
  const auto n = shape.tokens();
  return std::max({bytes_of<Qkv>(*this, n), bytes_of<Attended>(*this, n), bytes_of<QkvInput>(*this, n),
                   bytes_of<QkvWeight>(*this, n), bytes_of<Decode>(*this, 1)});
}

double Attention::forward_flops(BatchShape shape) const {
  const auto n = static_cast<double>(shape.tokens()), s = static_cast<double>(shape.seq),
             c = static_cast<double>(config_.hidden), attended = static_cast<double>(config_.attended_here());
  // A query meets (S + 1) / 2 keys on average, and as many values.
  return 2 * n * c * static_cast<double>(qkv_.outputs()) + 2 * n * c * attended + 2 * n * (s + 1) * attended;
}

void Attention::rotate(LayerContext& ctx, TensorView qkv, std::int64_t first_position, bool inverse) const {
  if (config_.positions != Positions::rotary) return;
  const std::int64_t row = qkv_.outputs();
  const TensorView q_and_k{
      qkv.data, qkv.dtype, {qkv.shape[0], config_.heads_here() + config_.kv_heads_here(), config_.head_dim()}};
  ctx.math.rotary(ctx.stream, q_and_k, row, ctx.shape.seq, first_position, config_.rope_theta, inverse);
}

// The same on all tensor ranks, though only one of them adds the residual: their programs must be one program.
std::vector<Phase> Attention::phases(LayerCall call, BatchShape shape) const {
  const auto n = shape.tokens();
  const double output = 2 * static_cast<double>(n * config_.hidden) * static_cast<double>(config_.attended_here());
  const double qkv = 2 * static_cast<double>(n * config_.hidden) * static_cast<double>(qkv_.outputs());
  const double attention = forward_flops(shape) - output - qkv;
  const auto qkv_input = params_of(norm_, qkv_), output_params = params_of(output_);
  if (call == LayerCall::forward)
    return {{.weights = qkv_input,
             .x = true,
             .saved = Access::overwrite,
             .scratch_bytes = bytes_of<Qkv>(*this, n),
             .flops = qkv + attention},
            {.weights = output_params,
             .x = true,
             .y = Access::overwrite,
             .saved = Access::read,
             .scratch_bytes = 0,
             .flops = output}};
  if (call == LayerCall::backward)
    return {{.half = Half::input,
             .weights = output_params,
             .dy = true,
             .saved = Access::read,
             .carried = Access::overwrite,
             .scratch_bytes = bytes_of<Attended>(*this, n),
             .flops = output + 2 * attention},
            {.half = Half::input,
             .weights = qkv_input,
             .x = true,
             .dy = true,
             .dx = Access::overwrite,
             .saved = Access::read,
             .carried = Access::update,
             .scratch_bytes = bytes_of<QkvInput>(*this, n),
             .flops = qkv},
            {.half = Half::weight,
             .gradients = output_params,
             .dy = true,
             .saved = Access::read,
             .scratch_bytes = 0,
             .flops = output},
            {.half = Half::weight,
             .weights = params_of(norm_),
             .gradients = qkv_input,
             .x = true,
             .carried = Access::read,
             .scratch_bytes = bytes_of<QkvWeight>(*this, n),
             .flops = qkv}};
  return {};
}

void Attention::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {});
  if (ctx.runs(kQkvForward)) {
    ScratchArena arena(ctx.scratch);
    const Qkv scratch(*this, arena, ctx.shape.tokens());
    norm_.forward(ctx, t.weights, scratch.normed, t.x, t.saved[kStatistics]);
    qkv_.forward(ctx, qkv_.prepare(ctx, t.weights, scratch.weights), t.saved[kQkv], scratch.normed);
    rotate(ctx, t.saved[kQkv], 0, false);
    ctx.math.attention(ctx.stream, attention_shape(ctx.shape), t.saved[kAttended], t.saved[kLogSumExp], t.saved[kQkv]);
  }
  if (ctx.runs(kOutputForward)) {
    const Accumulate how = begin_residual(ctx, t.y, t.x);
    output_.forward(ctx, output_.prepare(ctx, t.weights, {}), t.y, t.saved[kAttended], how);
  }
}

void Attention::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {});
  if (has(half, Half::input)) input_half(ctx, t);
  if (has(half, Half::weight)) weight_half(ctx, t);
}

void Attention::input_half(LayerContext& ctx, const LayerTensors& t) const {
  const TensorView dqkv = t.carried[kDqkv], dnormed = t.carried[kDnormed];
  if (ctx.runs(kOutputInput)) {
    ScratchArena arena(ctx.scratch);
    const TensorView dattended = Attended(*this, arena, ctx.shape.tokens()).gradient;
    output_.input_grad(ctx, output_.prepare(ctx, t.weights, {}), dattended, t.dy);
    ctx.math.attention_grad(ctx.stream, attention_shape(ctx.shape), dqkv, dattended, t.saved[kAttended], t.saved[kLogSumExp],
                            t.saved[kQkv]);
    rotate(ctx, dqkv, 0, true);
  }
  if (ctx.runs(kQkvInput)) {
    ScratchArena arena(ctx.scratch);
    const QkvInput scratch(*this, arena, ctx.shape.tokens());
    qkv_.input_grad(ctx, qkv_.prepare(ctx, t.weights, scratch.weights), dnormed, dqkv);
    const Accumulate how = begin_residual(ctx, t.dx, t.dy);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], how);
  }
}

void Attention::weight_half(LayerContext& ctx, const LayerTensors& t) const {
  if (ctx.runs(kOutputWeight)) output_.weight_grad(ctx, t.gradients, {}, t.dy, t.saved[kAttended], t.accumulate);
  if (ctx.runs(kQkvWeight)) {
    ScratchArena arena(ctx.scratch);
    const QkvWeight scratch(*this, arena, ctx.shape.tokens());
    norm_.forward(ctx, t.weights, scratch.normed, t.x, scratch.statistics);
    qkv_.weight_grad(ctx, t.gradients, scratch.gradient, t.carried[kDqkv], scratch.normed, t.accumulate);
    norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, scratch.statistics, t.accumulate);
  }
}

std::vector<TensorSpec> Attention::cache(std::int64_t capacity) const {
  const Shape shape{config_.kv_heads, capacity, config_.head_dim()};
  return {{"keys", config_.dtype, shape}, {"values", config_.dtype, shape}};
}

void Attention::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y,
                            CacheViews cache_views, std::int64_t position) const {
  check_decode(ctx, weights, cache_views, position);
  check("x", x, config_.dtype, {1, config_.hidden});
  check("y", y, config_.dtype, {1, config_.hidden});
  const std::int64_t capacity = cache_views[0].shape[1], dim = config_.head_dim();
  if (position >= capacity) fail("position " + std::to_string(position) + " is beyond the cache's " + std::to_string(capacity));
  ScratchArena arena(ctx.scratch);
  const Decode scratch(*this, arena, 1);

  norm_.forward(ctx, weights, scratch.normed, x, scratch.statistics);
  qkv_.forward(ctx, qkv_.prepare(ctx, weights, scratch.qkv_weights), scratch.qkv, scratch.normed);
  rotate(ctx, scratch.qkv, position, false);
  for (std::int64_t kind = 0; kind < 2; ++kind) {  // keys, values
    for (std::int64_t group = 0; group < config_.kv_heads; ++group) {
      const std::int64_t head = config_.heads + kind * config_.kv_heads + group;
      ctx.math.convert(ctx.stream,
                       part(cache_views[static_cast<std::size_t>(kind)], (group * capacity + position) * dim, {dim}),
                       part(scratch.qkv, head * dim, {dim}));
    }
  }
  ctx.math.attention_decode(ctx.stream, attention_shape({1, 1}), scratch.attended, scratch.qkv, cache_views[0], cache_views[1],
                            position + 1);
  ctx.math.convert(ctx.stream, y, x);
  output_.forward(ctx, output_.prepare(ctx, weights, {}), y, scratch.attended, Accumulate::yes);
}

}  // namespace terrace::layers
