#include <terrace/parallel/layers/branch/residual_branch.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace terrace::layers {

// In tiles the biases, which are small, are declared apart from the matrices.
ResidualBranch::ResidualBranch(std::string name, const Transformer& config, std::int64_t block, const Parts& parts)
    : TransformerLayer(std::move(name), config),
      branch_tiles_(parts.tiles),
      norm_(params_, config.names.norm_in_block(block, parts.norm), config),
      query_key_norm_(parts.is_attention ? QueryKeyNorm(params_, config, block) : QueryKeyNorm()),
      in_biases_(declare_biases(config.names.in_block(block, ""), parts.in, parts.in_outputs, parts.in_ways)),
      out_biases_(declare_biases(config.names.in_block(block, ""), parts.out, {config.hidden}, {1})),
      in_(params_, config.names.in_block(block, ""), {parts.in.tensors, parts.in.bias && !in_tiles()}, parts.in_outputs,
          config.hidden, {Projection::Split::Of::outputs, parts.in_ways}, config.init_std, config),
      out_(params_, config.names.in_block(block, ""), {parts.out.tensors, parts.out.bias && !in_tiles()}, {config.hidden},
           parts.out_inputs, {Projection::Split::Of::inputs, {config.tensor().ranks}}, config.residual_init_std(), config),
      result_norm_(params_, config.names.norm_in_block(block, parts.result_norm), config),
      in_adapters_(params_, LowRank::results_of(in_, config.names.in_block(block, ""), parts.in.tensors), in_,
                   in_tiles() ? 3 : 2, config),
      out_adapters_(params_, LowRank::results_of(out_, config.names.in_block(block, ""), parts.out.tensors), out_,
                    in_tiles() ? 4 : 3, config),
      in_result_(parts.in_result) {
  out_.set_unit(params_, 1);
  for (const auto& p : params_of(result_norm_)) params_[p.param].unit = in_tiles() ? 2 : 1;
  if (!in_tiles()) return;
  in_tiles_.emplace(params_, in_, branch_tiles_, 1, TiledProjection::Bias{in_biases_}, config.dtype);
  out_tiles_.emplace(params_, out_, branch_tiles_, 2, TiledProjection::Bias{out_biases_, config.tensor().leads()},
                     config.dtype);
}

std::vector<std::uint32_t> ResidualBranch::declare_biases(const std::string& prefix, const ProjectionParts& parts,
                                                          const std::vector<std::int64_t>& widths,
                                                          const std::vector<std::uint32_t>& ways) {
  std::vector<std::uint32_t> declared;
  if (!in_tiles() || !parts.bias) return declared;
  for (std::size_t i = 0; i < parts.tensors.size(); ++i) {
    const auto its_widths = parts.tensors.size() == 1 ? widths : std::vector{widths[i]};  // one tensor has all results
    const auto all = std::accumulate(its_widths.begin(), its_widths.end(), std::int64_t{0});
    const auto split = ways[i] == 1 ? TensorSplit{} : TensorSplit{.dim = 0, .parts = its_widths, .ways = ways[i]};
    declared.push_back(static_cast<std::uint32_t>(params_.size()));
    params_.push_back({.name = bias_name(prefix + parts.tensors[i]),
                       .shape = part_shape({all}, split),
                       .init = {},
                       .decay = false,
                       .split = split});
  }
  return declared;
}

std::vector<TensorSpec> ResidualBranch::saved(BatchShape shape) const {
  auto all = saved_of_middle(shape);
  std::ranges::copy(query_key_norm_.saved(shape.tokens()), std::back_inserter(all));
  std::ranges::copy(result_norm_.saved(rows_of(shape)), std::back_inserter(all));
  return all;
}

ResidualBranch::SavedOfNorms ResidualBranch::saved_of_norms(const LayerTensors& t) const {
  const std::size_t result = result_norm_ ? ResultNorm::kSaved : 0, query_key = query_key_norm_.saved(1).size();
  const auto end = t.saved.size();
  SavedOfNorms some{t.saved.subspan(end - result - query_key, query_key), {}};
  if (result_norm_) some.result = {t.saved[end - 2], t.saved[end - 1]};
  return some;
}

std::span<const TensorView> ResidualBranch::carried_of_query_key(const LayerTensors& t) const {
  return t.carried.subspan(on_shares() ? kDout + 1 : kDout, query_key_norm_.carried(1).size());
}

std::vector<TensorSpec> ResidualBranch::saved_of_middle(BatchShape shape) const {
  return {norm_.statistics(rows_of(shape)), {in_result_, config_.dtype, {shape.tokens(), in_.outputs()}}};
}

std::vector<TensorSpec> ResidualBranch::carried(BatchShape shape) const {
  std::vector<TensorSpec> all{{"gradient of " + in_result_, config_.dtype, {shape.tokens(), in_.outputs()}},
                              {"gradient of norm's result", config_.dtype, {rows_of(shape), config_.hidden}}};
  if (on_shares()) all.push_back({"gradient of the result", config_.dtype, {shape.tokens(), config_.hidden}});
  std::ranges::copy(query_key_norm_.carried(shape.tokens()), std::back_inserter(all));
  if (result_norm_ && !on_shares()) all.push_back(result_norm_.carried(shape.tokens()));
  return all;
}

double ResidualBranch::middle_flops(BatchShape shape) const {
  return forward_flops(shape) - product_flops(shape.tokens(), in_.outputs() + out_.inputs());
}

void ResidualBranch::describe(CallSteps& steps, LayerCall call, BatchShape shape) const {
  begin(steps, call);
  if (call == LayerCall::decode) return describe_decode(steps);
  for (const auto& tensor : middle_work(call, shape)) static_cast<void>(steps.room(tensor));
  if (call == LayerCall::forward)
    on_shares() ? forward_in_pieces(steps, shape) : in_tiles() ? forward_in_tiles(steps, shape) : forward_whole(steps, shape);
  else
    on_shares()  ? backward_in_pieces(steps, shape)
    : in_tiles() ? backward_in_tiles(steps, shape)
                 : backward_whole(steps, shape);
}

void ResidualBranch::add_middle(CallSteps& steps, LayerCall call, BatchShape shape) const {
  const auto first = steps.steps().size();
  describe_middle(steps, call, shape);
  if (!on_shares() && !result_norm_) return;
  for (auto& step : std::span(steps.steps()).subspan(first))  // a gradient is carried already
    if (step.phase.carried == Access::overwrite) step.phase.carried = Access::update;
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
                   recomputed + std::max(out_adapters_.bytes(n), out_adapters_.gradient_bytes(n)),
                   std::max(bytes_of<InInput>(*this, n), query_key_bytes(n)), bytes_of<InWeight>(*this, n),
                   tile_bytes(n) + norm_.statistics(n).bytes() + ScratchArena::kAlignBytes});
}

std::uint64_t ResidualBranch::query_key_bytes(std::int64_t rows) const {
  return query_key_norm_ ? round_up(query_key_norm_.scratch(rows).bytes(), ScratchArena::kAlignBytes) : 0;
}

PhaseExchange ResidualBranch::sum_of(const NormSums& sums, BatchShape shape) const {
  const auto elements = query_key_norm_.sums(shape.tokens()).shape.elements();
  return {.members = kTensorRanks,
          .from = sums.here,
          .to = sums.all,
          .sent = {elements},
          .received = {elements},
          .operation = Operation::all_reduce};
}

// Sums that norms across ranks need; else none.
ResidualBranch::NormSums ResidualBranch::add_norm_sums(CallSteps& steps, BatchShape shape) const {
  if (!norms_across()) return {};
  const auto sums = query_key_norm_.sums(shape.tokens());
  auto here = sums;
  here.name += ", this rank's part";
  const auto first = steps.room(here);
  return {.here = first, .all = steps.room(sums)};
}

// Scratch that must last for several phases.
std::uint32_t ResidualBranch::lasting(CallSteps& steps, const std::string& name, std::uint64_t bytes) const {
  const auto room = steps.room(name, config_.dtype);
  steps.reserve(room, static_cast<std::int64_t>(bytes / size_of(config_.dtype)));
  return room;
}

// Tensor ranks add up the result of `out`, and each of them norms it.
void ResidualBranch::add_result(CallSteps& steps, BatchShape shape) const {
  const auto position = static_cast<std::uint32_t>(saved(shape).size() - ResultNorm::kSaved);
  result_norm_.describe_sum(steps, shape.tokens(), position,
                            [this](const LayerTensors& t) { return saved_of_norms(t).result; });
}

// Norms of q and k across ranks wait for a sum; then the middle is saved, or begins. `room`: the result of `in`, if the product
// does not write it where it is saved.
void ResidualBranch::norm_across(CallSteps& steps, BatchShape shape, const NormSums& sums, std::uint32_t room) const {
  const auto n = shape.tokens();
  steps.exchange(Half::both, sum_of(sums, shape));
  Phase norms{.weights = params_of(query_key_norm_),
              .saved = Access::update,
              .work = CallSteps::uses({sums.all}, begins_middle(LayerCall::forward)),
              .scratch_bytes = query_key_bytes(n),
              .flops = middle_at_once() ? middle_flops(shape) : 0};
  if (in_result_bytes(n) != 0) norms.work.push_back({room, Access::update});
  steps.compute(std::move(norms), [=, this](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena of_room(t.work[room]);
    const auto result = in_result(t, n, of_room);
    norm_in_result(ctx, t, result, ScratchArena(ctx.scratch), t.work[sums.all]);
    save_middle(ctx, t, result);
  });
}

// The first phases of the gradient of norms across ranks.
void ResidualBranch::norm_grad_across(CallSteps& steps, BatchShape shape, const NormSums& sums) const {
  if (!norms_across()) return;
  steps.compute(in_result_grad_phase(sums),
                [=, this](LayerContext& ctx, const LayerTensors& t) { take_in_result_grad(ctx, t, sums); });
  steps.exchange(Half::input, sum_of(sums, shape));
}

// Runs take_in_result_grad().
Phase ResidualBranch::in_result_grad_phase(const NormSums& sums) const {
  return {.half = Half::input,
          .weights = params_of(query_key_norm_),
          .saved = Access::read,
          .carried = Access::update,
          .work = CallSteps::uses({}, {sums.here}),
          .scratch_bytes = 0};
}

void ResidualBranch::norm_in_result(LayerContext& ctx, const LayerTensors& t, TensorView result, ScratchArena arena,
                                    TensorView sums) const {
  if (!query_key_norm_) return;
  const auto norms = saved_of_norms(t).query_key;
  if (!norms_across()) query_key_norm_.take(ctx, result, norms, {});
  const auto room = query_key_norm_.scratch(ctx.shape.tokens());
  query_key_norm_.forward(ctx, t.weights, result, norms, arena.take(room.dtype, room.shape), sums);
}

void ResidualBranch::norm_in_result_grad(LayerContext& ctx, const LayerTensors& t, ScratchArena arena, TensorView sums) const {
  if (!query_key_norm_) return;
  const auto norms = saved_of_norms(t).query_key, carried = carried_of_query_key(t);
  if (!norms_across()) query_key_norm_.take_grad(ctx, t.weights, t.carried[kDin], norms, carried, {});
  const auto room = query_key_norm_.scratch(ctx.shape.tokens());
  query_key_norm_.input_grad(ctx, t.weights, t.carried[kDin], norms, carried, arena.take(room.dtype, room.shape), sums);
}

void ResidualBranch::norm_position(LayerContext& ctx, std::span<const TensorView> weights, TensorView qkv,
                                   ScratchArena arena) const {
  if (!query_key_norm_) return;
  std::vector<TensorView> saved;
  for (const auto& spec : query_key_norm_.saved(1)) saved.push_back(arena.take(spec.dtype, spec.shape));
  const auto room = query_key_norm_.scratch(1);
  query_key_norm_.take(ctx, qkv, saved, {});
  query_key_norm_.forward(ctx, weights, qkv, saved, arena.take(room.dtype, room.shape), {});
}

std::uint64_t ResidualBranch::norm_position_bytes() const {
  ScratchArena arena;
  for (const auto& spec : query_key_norm_.saved(1)) static_cast<void>(arena.take(spec.dtype, spec.shape));
  return arena.peak_bytes() + query_key_bytes(1);
}

void ResidualBranch::add_position(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView middle,
                                  TensorView x, ScratchArena arena) const {
  ResultNorm::Saved saved;
  if (result_norm_) saved = {arena.take(config_.dtype, {1, config_.hidden}), take_statistics(arena, 1)};
  run_out(ctx, weights, y, middle, x, saved, arena);
}

std::uint64_t ResidualBranch::add_position_bytes() const {
  ScratchArena arena;
  if (result_norm_) {
    static_cast<void>(arena.take(config_.dtype, {1, config_.hidden}));
    static_cast<void>(take_statistics(arena, 1));
  }
  return arena.peak_bytes() + out_adapters_.bytes(1);
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
                             TensorView x, const ResultNorm::Saved& saved, ScratchArena arena) const {
  if (!result_norm_) {
    const Accumulate how = begin_residual(ctx, y, x);
    return run_out_product(ctx, weights, y, middle, how, arena);
  }
  run_out_product(ctx, weights, saved.result, middle, Accumulate::no, arena);
  if (!adds_up()) result_norm_.forward(ctx, weights, y, x, saved);
}

// If all tensor ranks have whole rows, only the leading rank computes this gradient.
void ResidualBranch::norm_result_weight_grad(LayerContext& ctx, const LayerTensors& t) const {
  result_norm_.weight_grad(ctx, t.gradients, t.dy, saved_of_norms(t).result, t.accumulate,
                           on_shares() || config_.tensor().leads());
}

}  // namespace terrace::layers
