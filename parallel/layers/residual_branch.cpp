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
      norm_(params_, config.names.norm_in_block(block, parts.norm), config),
      query_key_norm_(parts.is_attention ? QueryKeyNorm(params_, config, block) : QueryKeyNorm()),
      in_bias_(declare_bias(config.names.in_block(block, ""), parts.in, parts.in_outputs, parts.in_ways[0])),
      out_bias_(declare_bias(config.names.in_block(block, ""), parts.out, {config.hidden}, 1)),
      in_(params_, config.names.in_block(block, ""), {parts.in.tensors, parts.in.bias && !in_tiles()}, parts.in_outputs,
          config.hidden, {Projection::Split::Of::outputs, parts.in_ways}, config.init_std, config),
      out_(params_, config.names.in_block(block, ""), {parts.out.tensors, parts.out.bias && !in_tiles()}, {config.hidden},
           parts.out_inputs, {Projection::Split::Of::inputs, {config.tensor.ranks}}, config.residual_init_std(), config),
      result_norm_(params_, config.names.norm_in_block(block, parts.result_norm), config),
      in_adapters_(params_, LowRank::results_of(in_, config.names.in_block(block, ""), parts.in.tensors), in_, 2, config),
      out_adapters_(params_, LowRank::results_of(out_, config.names.in_block(block, ""), parts.out.tensors), out_, 3, config),
      in_result_(parts.in_result) {
  out_.set_unit(params_, 1);
  for (const auto& p : params_of(result_norm_)) params_[p.param].unit = 1;
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
  auto all = saved_of_middle(shape);
  std::ranges::copy(query_key_norm_.saved(shape.tokens()), std::back_inserter(all));
  if (!result_norm_) return all;
  all.push_back({"input of the norm of the result", config_.dtype, {shape.tokens(), config_.hidden}});
  all.push_back(result_norm_.statistics(shape.tokens()));
  return all;
}

ResidualBranch::SavedOfNorms ResidualBranch::saved_of_norms(const LayerTensors& t) const {
  const std::size_t result = result_norm_ ? 2 : 0, query_key = query_key_norm_.saved(1).size();
  const auto end = t.saved.size();
  SavedOfNorms some{t.saved.subspan(end - result - query_key, query_key), {}, {}};
  if (result_norm_) some.result = t.saved[end - 2], some.result_statistics = t.saved[end - 1];
  return some;
}

ResidualBranch::CarriedOfNorms ResidualBranch::carried_of_norms(const LayerTensors& t) const {
  const std::size_t result = result_norm_ ? 1 : 0, query_key = query_key_norm_.carried(1).size();
  const auto end = t.carried.size();
  return {t.carried.subspan(end - result - query_key, query_key), result_norm_ ? t.carried[end - 1] : TensorView{}};
}

std::vector<TensorSpec> ResidualBranch::saved_of_middle(BatchShape shape) const {
  return {norm_.statistics(rows_of(shape)), {in_result_, config_.dtype, {shape.tokens(), in_.outputs()}}};
}

std::vector<TensorSpec> ResidualBranch::carried(BatchShape shape) const {
  std::vector<TensorSpec> all{{"gradient of " + in_result_, config_.dtype, {shape.tokens(), in_.outputs()}},
                              {"gradient of norm's result", config_.dtype, {rows_of(shape), config_.hidden}}};
  if (on_shares()) all.push_back({"gradient of the result", config_.dtype, {shape.tokens(), config_.hidden}});
  std::ranges::copy(query_key_norm_.carried(shape.tokens()), std::back_inserter(all));
  if (result_norm_) all.push_back({"gradient of the norm's input", config_.dtype, {shape.tokens(), config_.hidden}});
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
    : normed(arena.take(layer.config_.dtype, {rows, layer.config_.hidden})),
      weights(layer.in_.place_weights(arena)),
      adapters(layer.in_adapters_.place(arena, rows)) {}

ResidualBranch::InInput::InInput(const ResidualBranch& layer, ScratchArena& arena, std::int64_t rows)
    : weights(layer.in_.place_weights(arena)), adapters(layer.in_adapters_.place(arena, rows)) {}

ResidualBranch::InWeight::InWeight(const ResidualBranch& layer, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(layer.config_.dtype, {rows, layer.config_.hidden})),
      statistics(layer.take_statistics(arena, rows)),
      gradient(layer.in_.place_gradient(arena)),
      adapters(layer.in_adapters_.place_gradient(arena, rows)) {}

std::uint64_t ResidualBranch::scratch_bytes(BatchShape shape) const {
  const auto n = shape.tokens();
  const std::uint64_t recomputed = saves_middle() ? 0 : middle_bytes(n);
  return std::max({std::max(in_bytes(n), query_key_bytes(n)) + in_result_bytes(n), middle_bytes(n) + out_adapters_.bytes(n),
                   recomputed + std::max(result_norm_bytes(n) + out_adapters_.bytes(n), out_adapters_.gradient_bytes(n)),
                   std::max(bytes_of<InInput>(*this, n), query_key_bytes(n)), bytes_of<InWeight>(*this, n),
                   tile_bytes(n) + norm_.statistics(n).bytes() + ScratchArena::kAlignBytes});
}

std::uint64_t ResidualBranch::query_key_bytes(std::int64_t rows) const {
  return query_key_norm_ ? round_up(query_key_norm_.scratch(rows).bytes(), ScratchArena::kAlignBytes) : 0;
}

std::uint64_t ResidualBranch::result_norm_bytes(std::int64_t rows) const {
  if (!result_norm_) return 0;
  return round_up(TensorSpec{"", config_.dtype, {rows, config_.hidden}}.bytes(), ScratchArena::kAlignBytes);
}

void ResidualBranch::norm_in_result(LayerContext& ctx, const LayerTensors& t, TensorView result, ScratchArena arena) const {
  if (!query_key_norm_) return;
  const auto room = query_key_norm_.scratch(ctx.shape.tokens());
  query_key_norm_.forward(ctx, t.weights, result, saved_of_norms(t).query_key, arena.take(room.dtype, room.shape));
}

void ResidualBranch::norm_in_result_grad(LayerContext& ctx, const LayerTensors& t, ScratchArena arena) const {
  if (!query_key_norm_) return;
  const auto room = query_key_norm_.scratch(ctx.shape.tokens());
  query_key_norm_.input_grad(ctx, t.weights, t.carried[kDin], saved_of_norms(t).query_key, carried_of_norms(t).query_key,
                             arena.take(room.dtype, room.shape));
}

void ResidualBranch::norm_position(LayerContext& ctx, std::span<const TensorView> weights, TensorView qkv,
                                   ScratchArena arena) const {
  if (!query_key_norm_) return;
  std::vector<TensorView> saved;
  for (const auto& spec : query_key_norm_.saved(1)) saved.push_back(arena.take(spec.dtype, spec.shape));
  const auto room = query_key_norm_.scratch(1);
  query_key_norm_.forward(ctx, weights, qkv, saved, arena.take(room.dtype, room.shape));
}

std::uint64_t ResidualBranch::norm_position_bytes() const {
  ScratchArena arena;
  for (const auto& spec : query_key_norm_.saved(1)) static_cast<void>(arena.take(spec.dtype, spec.shape));
  return arena.peak_bytes() + query_key_bytes(1);
}

void ResidualBranch::add_position(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView middle,
                                  TensorView x, ScratchArena arena) const {
  if (!result_norm_) return run_out(ctx, weights, y, middle, x, {}, {}, arena);
  const auto result = arena.take(config_.dtype, {1, config_.hidden}), statistics = take_statistics(arena, 1);
  run_out(ctx, weights, y, middle, x, result, statistics, arena);
}

std::uint64_t ResidualBranch::add_position_bytes() const {
  const auto norm =
      result_norm_ ? 2 * result_norm_bytes(1) + round_up(norm_.statistics(1).bytes(), ScratchArena::kAlignBytes) : 0;
  return norm + out_adapters_.bytes(1);
}

// The same on all tensor ranks, though only one of them adds the residual: their programs must be one program.
std::vector<Phase> ResidualBranch::phases_at_once(LayerCall call, BatchShape shape) const {
  const auto n = shape.tokens();
  const double in = product_flops(n, in_.outputs()), out = product_flops(n, out_.inputs()), between = middle_flops(shape);
  const auto in_params = params_of(norm_, query_key_norm_, in_, in_adapters_),
             out_params = params_of(out_, result_norm_, out_adapters_);
  const std::uint64_t recomputed = saves_middle() ? 0 : middle_bytes(n);
  const bool has_result_norm{result_norm_};
  auto all = middle_phases(call, shape);
  const bool at_once = all.empty();
  std::vector<PhaseWork> first_work;
  for (const auto tensor : begins_middle(call)) first_work.push_back({tensor, Access::overwrite});
  if (call == LayerCall::forward) {
    all.insert(all.begin(), {.weights = in_params,
                             .x = true,
                             .saved = Access::overwrite,
                             .work = first_work,
                             .scratch_bytes = std::max(in_bytes(n), query_key_bytes(n)) + in_result_bytes(n),
                             .flops = at_once ? in + between : in});
    all.push_back({.weights = out_params,
                   .x = true,
                   .y = Access::overwrite,
                   .saved = has_result_norm ? Access::update : Access::read,
                   .scratch_bytes = recomputed + result_norm_bytes(n) + out_adapters_.bytes(n),
                   .flops = out});
    return all;
  }
  if (call != LayerCall::backward) return {};
  if (has_result_norm)  // its input's gradient is carried already
    for (auto& phase : all)
      if (phase.carried == Access::overwrite) phase.carried = Access::update;
  all.insert(all.begin(), {.half = Half::input,
                           .weights = out_params,
                           .dy = true,
                           .saved = Access::read,
                           .carried = at_once || has_result_norm ? std::optional(Access::overwrite) : std::nullopt,
                           .work = first_work,
                           .scratch_bytes = middle_bytes(n) + out_adapters_.bytes(n),
                           .flops = at_once ? out + 2 * between : out});
  all.push_back({.half = Half::input,
                 .weights = in_params,
                 .x = true,
                 .dy = true,
                 .dx = Access::overwrite,
                 .saved = Access::read,
                 .carried = Access::update,
                 .scratch_bytes = std::max(bytes_of<InInput>(*this, n), query_key_bytes(n)),
                 .flops = in});
  all.push_back({.half = Half::weight,
                 .weights = params_of(out_adapters_),
                 .gradients = out_params,
                 .dy = true,
                 .saved = Access::read,
                 .carried = has_result_norm ? std::optional(Access::read) : std::nullopt,
                 .scratch_bytes = recomputed + out_adapters_.gradient_bytes(n),
                 .flops = out});
  all.push_back({.half = Half::weight,
                 .weights = params_of(norm_, in_adapters_),
                 .gradients = in_params,
                 .x = true,
                 .saved = query_key_norm_ ? std::optional(Access::read) : std::nullopt,
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
  in_adapters_.forward(ctx, weights, scratch.adapters, result, scratch.normed);
}

void ResidualBranch::run_out_product(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView middle,
                                     Accumulate accumulate, ScratchArena arena) const {
  out_.forward(ctx, out_.prepare(ctx, weights, {}), y, middle, accumulate);
  out_adapters_.forward(ctx, weights, out_adapters_.place(arena, ctx.shape.tokens()), y, middle);
}

void ResidualBranch::run_out(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView middle,
                             TensorView x, TensorView result, TensorView statistics, ScratchArena arena) const {
  if (!result_norm_) {
    const Accumulate how = begin_residual(ctx, y, x);
    return run_out_product(ctx, weights, y, middle, how, arena);
  }
  // The sum over tensor ranks would stand before the norm: there is one such rank.
  const auto normed = arena.take(config_.dtype, result.shape);
  run_out_product(ctx, weights, result, middle, Accumulate::no, arena);
  result_norm_.forward(ctx, weights, normed, result, statistics);
  ctx.math.add(ctx.stream, y, x, normed);
}

void ResidualBranch::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {});
  if (is_described()) return described(LayerCall::forward, ctx.shape).run(ctx, t, Half::both);
  const auto between = middles(LayerCall::forward, ctx.shape);
  if (ctx.runs(kInForward)) {
    ScratchArena arena(ctx.scratch);
    const TensorView result = in_result(t, ctx.shape.tokens(), arena);
    run_in(ctx, t.weights, result, t.x, t.saved[kStatistics], arena);
    norm_in_result(ctx, t, result, arena);
    save_middle(ctx, t, result);
  }
  run_middles(ctx, t, LayerCall::forward, between);
  if (ctx.runs(kOutForward + between)) {
    ScratchArena arena(ctx.scratch);
    const auto middle_result = middle(ctx, t, arena);
    const auto norms = saved_of_norms(t);
    run_out(ctx, t.weights, t.y, middle_result, t.x, norms.result, norms.result_statistics, arena);
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
    if (const auto norms = saved_of_norms(t); result_norm_)
      result_norm_.input_grad(ctx, t.weights, dresult(t), t.dy, norms.result, norms.result_statistics, Accumulate::no);
    out_.input_grad(ctx, out_.prepare(ctx, t.weights, {}), gradient, dresult(t));
    out_adapters_.input_grad(ctx, t.weights, out_adapters_.place(arena, ctx.shape.tokens()), gradient, dresult(t));
    middle_grad(ctx, t, din, gradient);
  }
  const auto between = middles(LayerCall::backward, ctx.shape);
  run_middles(ctx, t, LayerCall::backward, between);
  if (ctx.runs(kInInput + between)) {
    ScratchArena arena(ctx.scratch);
    norm_in_result_grad(ctx, t, arena);
    const InInput scratch(*this, arena, ctx.shape.tokens());
    in_.input_grad(ctx, in_.prepare(ctx, t.weights, scratch.weights), dnormed, din);
    in_adapters_.input_grad(ctx, t.weights, scratch.adapters, dnormed, din);
    const Accumulate how = begin_residual(ctx, t.dx, t.dy);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], how);
  }
}

void ResidualBranch::weight_half(LayerContext& ctx, const LayerTensors& t) const {
  const auto between = middles(LayerCall::backward, ctx.shape);
  if (ctx.runs(kOutWeight + between)) {
    ScratchArena arena(ctx.scratch);
    const auto middle_result = middle(ctx, t, arena);
    out_.weight_grad(ctx, t.gradients, {}, dresult(t), middle_result, t.accumulate);
    out_adapters_.weight_grad(ctx, t.weights, t.gradients, out_adapters_.place_gradient(arena, ctx.shape.tokens()), dresult(t),
                              middle_result, t.accumulate);
    if (const auto norms = saved_of_norms(t); result_norm_)
      result_norm_.weight_grad(ctx, t.gradients, t.dy, norms.result, norms.result_statistics, t.accumulate);
  }
  if (ctx.runs(kInWeight + between)) {
    ScratchArena arena(ctx.scratch);
    const InWeight scratch(*this, arena, ctx.shape.tokens());
    norm_.forward(ctx, t.weights, scratch.normed, t.x, scratch.statistics);
    in_.weight_grad(ctx, t.gradients, scratch.gradient, t.carried[kDin], scratch.normed, t.accumulate);
    in_adapters_.weight_grad(ctx, t.weights, t.gradients, scratch.adapters, t.carried[kDin], scratch.normed, t.accumulate);
    norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, scratch.statistics, t.accumulate);
    if (query_key_norm_)
      query_key_norm_.weight_grad(ctx, t.gradients, saved_of_norms(t).query_key, carried_of_norms(t).query_key, t.accumulate);
  }
}

}  // namespace terrace::layers
