#include <terrace/parallel/layers/residual_branch.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace terrace::layers {
namespace {

// Phases: of a forward, and of a backward. Those of the middle come behind the first one and move the later ones.
enum Forward : std::uint32_t { kInForward, kOutForward };
enum Backward : std::uint32_t { kOutInput, kInInput, kOutWeight, kInWeight };

}  // namespace

// In tiles the biases, which are small, are declared apart from the matrices.
ResidualBranch::ResidualBranch(std::string name, const Transformer& config, std::int64_t block, const Parts& parts)
    : TransformerLayer(std::move(name), config),
      branch_tiles_(parts.tiles),
      norm_(params_, config.names.in_block(block, parts.norm), config),
      in_bias_(declare_bias(config.names.in_block(block, ""), parts.in, parts.in_outputs, parts.in_ways[0])),
      out_bias_(declare_bias(config.names.in_block(block, ""), parts.out, {config.hidden}, 1)),
      in_(params_, config.names.in_block(block, ""), {parts.in.tensors, parts.in.bias && !in_tiles()}, parts.in_outputs,
          config.hidden, {Projection::Split::Of::outputs, parts.in_ways}, config.init_std, config),
      out_(params_, config.names.in_block(block, ""), {parts.out.tensors, parts.out.bias && !in_tiles()}, {config.hidden},
           parts.out_inputs, {Projection::Split::Of::inputs, {config.tensor.ranks}}, config.residual_init_std(), config),
      in_result_(parts.in_result) {
  out_.set_unit(params_, 1);
  if (!in_tiles()) return;
  in_tiles_.emplace(params_, in_, branch_tiles_, 1, TiledProjection::Bias{in_bias_}, config.dtype);
  out_tiles_.emplace(params_, out_, branch_tiles_, 2, TiledProjection::Bias{out_bias_, config.tensor.leads()}, config.dtype);
}

std::optional<std::uint32_t> ResidualBranch::declare_bias(const std::string& prefix, const ProjectionParts& parts,
                                                          const std::vector<std::int64_t>& widths, std::uint32_t ways) {
  if (!in_tiles() || !parts.bias) return std::nullopt;
  const auto all = std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
  const auto split = ways == 1 ? TensorSplit{} : TensorSplit{.dim = 0, .parts = widths, .ways = ways};
  params_.push_back({.name = bias_name(prefix + parts.tensors.at(0)),
                     .shape = part_shape({all}, split),
                     .init = {},
                     .decay = false,
                     .split = split});
  return static_cast<std::uint32_t>(params_.size() - 1);
}

std::vector<TensorSpec> ResidualBranch::saved(BatchShape shape) const {
  return {norm_.statistics(rows_of(shape)), {in_result_, config_.dtype, {shape.tokens(), in_.outputs()}}};
}

std::vector<TensorSpec> ResidualBranch::carried(BatchShape shape) const {
  std::vector<TensorSpec> all{{"gradient of " + in_result_, config_.dtype, {shape.tokens(), in_.outputs()}},
                              {"gradient of norm's result", config_.dtype, {rows_of(shape), config_.hidden}}};
  if (on_shares()) all.push_back({"gradient of the result", config_.dtype, {shape.tokens(), config_.hidden}});
  return all;
}

std::vector<TensorSpec> ResidualBranch::work(LayerCall call, BatchShape shape) const {
  return is_described() ? described(call, shape).work() : middle_work(call, shape);
}

double ResidualBranch::middle_flops(BatchShape shape) const {
  return forward_flops(shape) - product_flops(shape.tokens(), in_.outputs() + out_.inputs());
}

std::vector<Phase> ResidualBranch::phases(LayerCall call, BatchShape shape) const {
  if (in_tiles() && call == LayerCall::decode) return decode_in_tiles();
  return is_described() ? described(call, shape).phases() : phases_at_once(call, shape);
}

TensorView ResidualBranch::take_middle(ScratchArena& arena, std::int64_t rows) const {
  return arena.take(config_.dtype, {rows, out_.inputs()});
}

TensorView ResidualBranch::take_statistics(ScratchArena& arena, std::int64_t rows) const {
  const auto spec = norm_.statistics(rows);
  return arena.take(spec.dtype, spec.shape);
}

std::uint64_t ResidualBranch::middle_bytes(std::int64_t rows) const {
  ScratchArena arena;
  static_cast<void>(take_middle(arena, rows));
  return arena.peak_bytes();
}

ResidualBranch::In::In(const ResidualBranch& layer, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(layer.config_.dtype, {rows, layer.config_.hidden})), weights(layer.in_.place_weights(arena)) {}

ResidualBranch::InInput::InInput(const ResidualBranch& layer, ScratchArena& arena, std::int64_t)
    : weights(layer.in_.place_weights(arena)) {}

ResidualBranch::InWeight::InWeight(const ResidualBranch& layer, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(layer.config_.dtype, {rows, layer.config_.hidden})),
      statistics(layer.take_statistics(arena, rows)),
      gradient(layer.in_.place_gradient(arena)) {}

std::uint64_t ResidualBranch::scratch_bytes(BatchShape shape) const {
  const auto n = shape.tokens();
  return std::max({in_bytes(n) + in_result_bytes(n), middle_bytes(n), bytes_of<InInput>(*this, n), bytes_of<InWeight>(*this, n),
                   tile_bytes(n) + norm_.statistics(n).bytes() + ScratchArena::kAlignBytes});
}

// The same on all tensor ranks, though only one of them adds the residual: their programs must be one program.
std::vector<Phase> ResidualBranch::phases_at_once(LayerCall call, BatchShape shape) const {
  const auto n = shape.tokens();
  const double in = product_flops(n, in_.outputs()), out = product_flops(n, out_.inputs()), between = middle_flops(shape);
  const auto in_params = params_of(norm_, in_), out_params = params_of(out_);
  const std::uint64_t recomputed = saves_middle() ? 0 : middle_bytes(n);
  auto all = middle_phases(call, shape);
  const bool at_once = all.empty();
  std::vector<PhaseWork> first_work;
  for (const auto tensor : begins_middle(call)) first_work.push_back({tensor, Access::overwrite});
  if (call == LayerCall::forward) {
    all.insert(all.begin(), {.weights = in_params,
                             .x = true,
                             .saved = Access::overwrite,
                             .work = first_work,
                             .scratch_bytes = in_bytes(n) + in_result_bytes(n),
                             .flops = at_once ? in + between : in});
    all.push_back({.weights = out_params,
                   .x = true,
                   .y = Access::overwrite,
                   .saved = Access::read,
                   .scratch_bytes = recomputed,
                   .flops = out});
    return all;
  }
  if (call != LayerCall::backward) return {};
  all.insert(all.begin(), {.half = Half::input,
                           .weights = out_params,
                           .dy = true,
                           .saved = Access::read,
                           .carried = at_once ? std::optional(Access::overwrite) : std::nullopt,
                           .work = first_work,
                           .scratch_bytes = middle_bytes(n),
                           .flops = at_once ? out + 2 * between : out});
  all.push_back({.half = Half::input,
                 .weights = in_params,
                 .x = true,
                 .dy = true,
                 .dx = Access::overwrite,
                 .saved = Access::read,
                 .carried = Access::update,
                 .scratch_bytes = bytes_of<InInput>(*this, n),
                 .flops = in});
  all.push_back({.half = Half::weight,
                 .gradients = out_params,
                 .dy = true,
                 .saved = Access::read,
                 .scratch_bytes = recomputed,
                 .flops = out});
  all.push_back({.half = Half::weight,
                 .weights = params_of(norm_),
                 .gradients = in_params,
                 .x = true,
                 .carried = Access::read,
                 .scratch_bytes = bytes_of<InWeight>(*this, n),
                 .flops = in});
  return all;
}

void ResidualBranch::run_in(LayerContext& ctx, std::span<const TensorView> weights, TensorView result, TensorView x,
                            TensorView statistics, ScratchArena arena) const {
  const In scratch(*this, arena, ctx.shape.tokens());
  norm_.forward(ctx, weights, scratch.normed, x, statistics);
  in_.forward(ctx, in_.prepare(ctx, weights, scratch.weights), result, scratch.normed);
}

void ResidualBranch::run_out(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView middle,
                             TensorView x) const {
  const Accumulate how = begin_residual(ctx, y, x);
  out_.forward(ctx, out_.prepare(ctx, weights, {}), y, middle, how);
}

void ResidualBranch::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {});
  if (is_described()) return described(LayerCall::forward, ctx.shape).run(ctx, t, Half::both);
  const auto between = middles(LayerCall::forward, ctx.shape);
  if (ctx.runs(kInForward)) {
    ScratchArena arena(ctx.scratch);
    const TensorView result = in_result(t, ctx.shape.tokens(), arena);
    run_in(ctx, t.weights, result, t.x, t.saved[kStatistics], arena);
    save_middle(ctx, t, result);
  }
  run_middles(ctx, t, LayerCall::forward, between);
  if (ctx.runs(kOutForward + between)) {
    ScratchArena arena(ctx.scratch);
    run_out(ctx, t.weights, t.y, middle(ctx, t, arena), t.x);
  }
}

void ResidualBranch::run_middles(LayerContext& ctx, const LayerTensors& t, LayerCall call, std::uint32_t count) const {
  for (std::uint32_t m = 0; m < count; ++m)
    if (ctx.runs(1 + m)) run_middle(ctx, t, call, m);
}

void ResidualBranch::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {});
  if (is_described()) return described(LayerCall::backward, ctx.shape).run(ctx, t, half);
  if (has(half, Half::input)) input_half(ctx, t);
  if (has(half, Half::weight)) weight_half(ctx, t);
}

void ResidualBranch::input_half(LayerContext& ctx, const LayerTensors& t) const {
  const TensorView din = t.carried[kDin], dnormed = t.carried[kDnormed];
  if (ctx.runs(kOutInput)) {
    ScratchArena arena(ctx.scratch);
    const TensorView gradient = take_middle(arena, ctx.shape.tokens());
    out_.input_grad(ctx, out_.prepare(ctx, t.weights, {}), gradient, t.dy);
    middle_grad(ctx, t, din, gradient);
  }
  const auto between = middles(LayerCall::backward, ctx.shape);
  run_middles(ctx, t, LayerCall::backward, between);
  if (ctx.runs(kInInput + between)) {
    ScratchArena arena(ctx.scratch);
    const InInput scratch(*this, arena, ctx.shape.tokens());
    in_.input_grad(ctx, in_.prepare(ctx, t.weights, scratch.weights), dnormed, din);
    const Accumulate how = begin_residual(ctx, t.dx, t.dy);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], how);
  }
}

void ResidualBranch::weight_half(LayerContext& ctx, const LayerTensors& t) const {
  const auto between = middles(LayerCall::backward, ctx.shape);
  if (ctx.runs(kOutWeight + between)) {
    ScratchArena arena(ctx.scratch);
    out_.weight_grad(ctx, t.gradients, {}, t.dy, middle(ctx, t, arena), t.accumulate);
  }
  if (ctx.runs(kInWeight + between)) {
    ScratchArena arena(ctx.scratch);
    const InWeight scratch(*this, arena, ctx.shape.tokens());
    norm_.forward(ctx, t.weights, scratch.normed, t.x, scratch.statistics);
    in_.weight_grad(ctx, t.gradients, scratch.gradient, t.carried[kDin], scratch.normed, t.accumulate);
    norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, scratch.statistics, t.accumulate);
  }
}

}  // namespace terrace::layers
