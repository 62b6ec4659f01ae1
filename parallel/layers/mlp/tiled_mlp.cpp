#include <terrace/parallel/layers/mlp/tiled_mlp.h>

namespace terrace::layers {
namespace {

enum Saved : std::size_t { kStatistics, kResult, kResultStatistics };
enum Carried : std::size_t { kDnormed, kDresult };

ResultNorm::Saved of_result_norm(const LayerTensors& t) { return {t.saved[kResult], t.saved[kResultStatistics]}; }

std::vector<std::int64_t> up_outputs(const Transformer& config) {
  return std::vector(up_results(config.activation), config.ffn);
}

}  // namespace

TiledMlp::TiledMlp(const Transformer& config, std::int64_t block)
    : TransformerLayer("layers." + std::to_string(block) + ".mlp", config),
      norm_(params_, config.names.norm_in_block(block, config.names.mlp_norm), config),
      up_bias_(add_bias(config.names.in_block(block, ""), config.names.up, config.ffn, config.ffn_here() / tiles(),
                        config.tensor().ranks == 1 ? TensorSplit{} : TensorSplit{0, {config.ffn}, config.tensor().ranks})),
      down_bias_(add_bias(config.names.in_block(block, ""), config.names.down, config.hidden, config.hidden, {})),
      in_(params_, config.names.in_block(block, ""), {config.names.up.tensors}, up_outputs(config), config.hidden,
          {Projection::Split::Of::outputs, std::vector(up_results(config.activation), config.tensor().ranks)}, config.init_std,
          config),
      out_(params_, config.names.in_block(block, ""), {config.names.down.tensors}, {config.hidden}, config.ffn,
           {Projection::Split::Of::inputs, {config.tensor().ranks}}, config.residual_init_std(), config),
      result_norm_(params_, config.names.norm_in_block(block, config.names.mlp_result_norm), config),
      in_adapters_(params_, LowRank::results_of(in_, config.names.in_block(block, ""), config.names.up.tensors), in_, 3,
                   config),
      out_adapters_(params_, LowRank::results_of(out_, config.names.in_block(block, ""), config.names.down.tensors), out_, 4,
                    config) {
  for (const auto& p : params_of(result_norm_)) params_[p.param].unit = 2;
  in_.cut(params_, Projection::Split::Of::outputs, tiles(), 1);
  out_.cut(params_, Projection::Split::Of::inputs, tiles(), 2);
  in_adapters_.cut(Projection::Split::Of::outputs, tiles());
  out_adapters_.cut(Projection::Split::Of::inputs, tiles());
}

TiledMlp::Bias TiledMlp::add_bias(const std::string& prefix, const ProjectionParts& parts, std::int64_t width,
                                  std::int64_t of_tile, const TensorSplit& split) {
  if (!parts.bias) return {};
  params_.push_back({.name = bias_name(prefix + parts.tensors.at(0)),
                     .shape = part_shape({width}, split),
                     .init = {},
                     .decay = false,
                     .split = split});
  return {static_cast<std::uint32_t>(params_.size() - 1), of_tile};
}

std::vector<TensorSpec> TiledMlp::saved(BatchShape shape) const {
  std::vector<TensorSpec> all{norm_.statistics(shape.tokens())};
  for (const auto& tensor : result_norm_.saved(shape.tokens())) all.push_back(tensor);
  return all;
}

std::vector<TensorSpec> TiledMlp::carried(BatchShape shape) const {
  std::vector<TensorSpec> all{{"gradient of norm's result", config_.dtype, {shape.tokens(), config_.hidden}}};
  if (result_norm_) all.push_back(result_norm_.carried(shape.tokens()));
  return all;
}

std::vector<TensorSpec> TiledMlp::cache(std::int64_t) const {
  if (!result_norm_) return {};
  return {{"input of the norm of a position's result", config_.dtype, {1, config_.hidden}}};
}

TiledMlp::Scratch::Scratch(const TiledMlp& layer, ScratchArena& arena, std::int64_t rows) {
  const auto dtype = layer.config_.dtype;
  const auto spec = layer.norm_.statistics(rows);
  const auto each = layer.rows_of_a_tile(rows);
  statistics = arena.take(spec.dtype, spec.shape);
  normed = arena.take(dtype, {each, layer.config_.hidden});
  up = arena.take(dtype, {each, layer.in_.outputs()});
  activated = arena.take(dtype, {each, layer.out_.inputs()});
  weights = layer.in_.place_weights(arena);
  up_adapters = layer.in_adapters_.place(arena, each);
  down_adapters = layer.out_adapters_.place(arena, each);
}

TiledMlp::Scratch TiledMlp::first_rows(Scratch scratch, std::int64_t count) {
  for (auto* const view : {&scratch.normed, &scratch.up, &scratch.activated}) *view = row_slice(*view, 0, count);
  return scratch;
}

TiledMlp::BackwardScratch TiledMlp::first_rows(const BackwardScratch& scratch, std::int64_t count) {
  auto some = scratch;
  static_cast<Scratch&>(some) = first_rows(Scratch(scratch), count);
  some.dup = row_slice(scratch.dup, 0, count);
  return some;
}

TiledMlp::BackwardScratch::BackwardScratch(const TiledMlp& layer, ScratchArena& arena, std::int64_t rows)
    : Scratch(layer, arena, rows),
      dup(arena.take(layer.config_.dtype, up.shape)),
      gradient(layer.in_.place_gradient(arena)),
      up_gradients(layer.in_adapters_.place_gradient(arena, layer.rows_of_a_tile(rows))),
      down_gradients(layer.out_adapters_.place_gradient(arena, layer.rows_of_a_tile(rows))) {}

std::uint64_t TiledMlp::scratch_bytes(BatchShape shape) const { return bytes_of<BackwardScratch>(*this, shape.tokens()); }

double TiledMlp::forward_flops(BatchShape shape) const {
  const auto n = static_cast<double>(shape.tokens()), c = static_cast<double>(config_.hidden);
  return 2 * n * c * static_cast<double>(in_.outputs() + out_.inputs()) * tiles();
}

std::vector<PhaseParam> TiledMlp::small_params() const {
  auto params = params_of(norm_);
  for (const auto& bias : {up_bias_, down_bias_})
    if (bias.param) params.push_back({*bias.param});
  in_adapters_.name_params(params);
  out_adapters_.name_params(params);
  return params;
}

std::vector<PhaseParam> TiledMlp::params_with(std::uint32_t tile) const {
  auto params = small_params();
  in_.name_tile(params, tile);
  out_.name_tile(params, tile);
  return params;
}

Phase TiledMlp::forward_phase(LayerCall call, BatchShape shape, std::uint32_t tile) const {
  const auto how = tile == 0 ? Access::overwrite : Access::update;
  Phase phase{.weights = params_with(tile),
              .x = true,
              .scratch_bytes = bytes_of<Scratch>(*this, shape.tokens()),
              .flops = forward_flops(shape) / tiles()};
  if (call == LayerCall::forward || result_norm_) phase.saved = how;
  if (!result_norm_) phase.y = how;
  if (!norms_with(tile)) return phase;
  phase.y = Access::overwrite;
  result_norm_.name_params(phase.weights);
  return phase;
}

Phase TiledMlp::backward_phase(BatchShape shape, std::uint32_t tile) const {
  const auto product = [&](std::int64_t width) {
    return 2 * static_cast<double>(shape.tokens() * config_.hidden) * static_cast<double>(width);
  };
  Phase phase{.weights = params_with(tile),
              .gradients = params_with(tile),
              .x = true,
              .dy = true,
              .saved = Access::read,
              .carried = tile == 0 ? Access::overwrite : Access::update,
              .flops = 3 * product(in_.outputs()) + 2 * product(out_.inputs())};
  if (tile == 0) result_norm_.name_params(phase.weights);
  if (!is_last(tile)) return phase;
  phase.dx = Access::overwrite;
  result_norm_.name_params(phase.gradients);
  return phase;
}

// A phase for each tile.
void TiledMlp::describe(CallSteps& steps, LayerCall call, BatchShape shape) const {
  begin(steps, call);
  for (std::uint32_t tile = 0; tile < tiles(); ++tile) {
    if (call == LayerCall::backward) {
      steps.compute(backward_phase(shape, tile),
                    [=, this](LayerContext& ctx, const LayerTensors& t) { backward_of_tile(ctx, t, tile); });
      continue;
    }
    const bool forward = call == LayerCall::forward;
    steps.compute(forward_phase(call, shape, tile), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      const Scratch scratch(*this, arena, ctx.shape.tokens());
      const auto result = !result_norm_ ? t.y : forward ? t.saved[kResult] : t.saved[0];
      add_tile(ctx, t, result, forward ? t.saved[kStatistics] : scratch.statistics, scratch, tile);
      if (!norms_with(tile)) return;
      result_norm_.forward(ctx, t.weights, t.y, t.x,
                           forward ? of_result_norm(t) : ResultNorm::Saved{result, scratch.statistics});
    });
  }
  if (call == LayerCall::forward && adds_up()) result_norm_.describe_sum(steps, shape.tokens(), kResult, of_result_norm);
}

TensorView TiledMlp::dresult(const LayerTensors& t) const { return result_norm_ ? t.carried[kDresult] : t.dy; }

void TiledMlp::make_up(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, const NormStatistics& statistics,
                       const Scratch& scratch, std::uint32_t tile) const {
  norm_.forward(ctx, weights, scratch.normed, x, statistics);
  auto whole = in_.prepare(ctx, weights, scratch.weights);
  whole.bias = up_bias_.of(weights, tile);
  in_.forward(ctx, whole, scratch.up, scratch.normed);
  in_adapters_.forward(ctx, weights, scratch.up_adapters, scratch.up, scratch.normed, tile);
}

void TiledMlp::add_tile(LayerContext& ctx, const LayerTensors& t, TensorView result, TensorView statistics,
                        const Scratch& scratch, std::uint32_t tile) const {
  const Accumulate how = tile != 0 ? Accumulate::yes : result_norm_ ? Accumulate::no : begin_residual(ctx, t.y, t.x);
  auto whole = out_.prepare(ctx, t.weights, {});
  if (tile == 0 && config_.tensor().leads()) whole.bias = down_bias_.of(t.weights, 0);
  each_row_tile(t.x.shape[0], [&](Block rows) {
    const auto some = first_rows(scratch, rows.count);
    make_up(ctx, t.weights, row_slice(t.x, rows.begin, rows.count), NormStatistics(statistics).rows(rows.begin, rows.count),
            some, tile);
    ctx.math.activation(ctx.stream, config_.activation, some.activated, some.up);
    const auto to = row_slice(result, rows.begin, rows.count);
    out_.forward(ctx, whole, to, some.activated, how);
    out_adapters_.forward(ctx, t.weights, scratch.down_adapters, to, some.activated, tile);
  });
}

// The bias belongs to the rank that adds it: only that rank computes its gradient.
void TiledMlp::down_bias_grad(LayerContext& ctx, const LayerTensors& t) const {
  const TensorView down = down_bias_.of(t.gradients, 0);
  if (down.empty()) return;
  if (config_.tensor().leads())
    ctx.math.bias_grad(ctx.stream, down, dresult(t), t.accumulate);
  else if (t.accumulate == Accumulate::no)
    ctx.math.zero(ctx.stream, down);
}

void TiledMlp::backward_of_tile(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile) const {
  ScratchArena arena(ctx.scratch);
  const BackwardScratch scratch(*this, arena, ctx.shape.tokens());
  if (result_norm_ && tile == 0 && has(ctx.half, Half::input))
    result_norm_.input_grad(ctx, t.weights, dresult(t), t.dy, of_result_norm(t), 0);
  each_row_tile(ctx.shape.tokens(), [&](Block rows) { backward_of_rows(ctx, t, tile, first_rows(scratch, rows.count), rows); });
  if (tile == 0 && has(ctx.half, Half::weight)) down_bias_grad(ctx, t);
  if (!is_last(tile)) return;
  const TensorView dnormed = t.carried[kDnormed];
  if (has(ctx.half, Half::input)) {
    const Accumulate how = begin_residual(ctx, t.dx, t.dy);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, scratch.statistics, how);
  }
  if (!has(ctx.half, Half::weight)) return;
  norm_.weight_grad(ctx, t.gradients, dnormed, t.x, scratch.statistics, t.accumulate);
  if (result_norm_) result_norm_.weight_grad(ctx, t.gradients, t.dy, of_result_norm(t), t.accumulate, config_.tensor().leads());
}

void TiledMlp::backward_of_rows(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile, const BackwardScratch& scratch,
                                Block rows) const {
  const auto of = [&](const TensorView& all) { return row_slice(all, rows.begin, rows.count); };
  const auto accumulate = rows.begin == 0 ? t.accumulate : Accumulate::yes;
  const auto dy = of(dresult(t));
  make_up(ctx, t.weights, of(t.x), NormStatistics(scratch.statistics).rows(rows.begin, rows.count), scratch, tile);
  if (has(ctx.half, Half::weight)) {
    ctx.math.activation(ctx.stream, config_.activation, scratch.activated, scratch.up);
    out_.weight_grad(ctx, t.gradients, {}, dy, scratch.activated, accumulate);
    out_adapters_.weight_grad(ctx, t.weights, t.gradients, scratch.down_gradients, dy, scratch.activated, accumulate, tile);
  }
  const TensorView dactivated = scratch.activated;  // no longer needed
  out_.input_grad(ctx, out_.prepare(ctx, t.weights, {}), dactivated, dy);
  out_adapters_.input_grad(ctx, t.weights, scratch.down_adapters, dactivated, dy, tile);
  ctx.math.activation_grad(ctx.stream, config_.activation, scratch.dup, dactivated, scratch.up);
  if (has(ctx.half, Half::input)) {
    const auto dnormed = of(t.carried[kDnormed]);
    in_.input_grad(ctx, in_.prepare(ctx, t.weights, scratch.weights), dnormed, scratch.dup,
                   tile == 0 ? Accumulate::no : Accumulate::yes);
    in_adapters_.input_grad(ctx, t.weights, scratch.up_adapters, dnormed, scratch.dup, tile);
  }
  if (!has(ctx.half, Half::weight)) return;
  in_.weight_grad(ctx, t.gradients, scratch.gradient, scratch.dup, scratch.normed, accumulate);
  in_adapters_.weight_grad(ctx, t.weights, t.gradients, scratch.up_gradients, scratch.dup, scratch.normed, accumulate, tile);
  if (const auto bias = up_bias_.of(t.gradients, tile); !bias.empty())
    ctx.math.bias_grad(ctx.stream, bias, scratch.dup, accumulate);
}

}  // namespace terrace::layers
