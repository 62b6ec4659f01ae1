// A residual branch whose two products run in tiles of their results (tiled_projection.h): a phase uses one tile of one matrix,
// or of its gradient, so a branch can train even if its matrices are larger than the device. All of its activations must fit.
//
//   forward    norm, in 0 │ in 1 │ … │ middle │ out 0, residual │ out 1 │ …
//   backward   out's dx 0 │ … │ middle's gradient │ in's dx 0 │ … │ out's dW 0 │ … │ norm, in's dW 0 │ … │ norm's gradient
//
// A result is the same product as without tiles, some columns at a time. The gradient of an input is a sum over tiles, rounded
// to the dtype of activations after each tile. Adapters and a norm of the result, which are small, belong to the last tile.
#include <algorithm>

#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {
namespace {

Access of_tile(std::uint32_t tile) { return tile == 0 ? Access::overwrite : Access::update; }

}  // namespace

std::vector<PhaseParam> ResidualBranch::params_of_tile(const TiledProjection& product, std::uint32_t tile,
                                                       bool with_norm) const {
  auto params = with_norm ? norm_params() : std::vector<PhaseParam>{};
  product.name_tile(params, tile);
  return params;
}

std::uint64_t ResidualBranch::tile_bytes(std::int64_t rows) const {
  return branch_tiles_ == 1 ? 0 : std::max(in_tiles_->scratch_bytes(rows), out_tiles_->scratch_bytes(rows));
}

void ResidualBranch::forward_in_tiles(CallSteps& steps, BatchShape shape) const {
  const auto n = shape.tokens();
  const auto normed = steps.room("norm's result", config_.dtype);
  steps.reserve(normed, n * config_.hidden);
  const bool has_room = in_result_bytes(n) != 0;  // the product does not write it where it is saved
  const auto room = lasting(steps, in_result_, in_result_bytes(n));
  const auto sums = add_norm_sums(steps, shape);
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool last = i + 1 == branch_tiles_, ends = last && !norms_across(), takes = last && norms_across();
    Phase phase{.weights = params_of_tile(*in_tiles_, i, i == 0 || (last && query_key_norm_)),
                .x = i == 0,
                .saved = of_tile(i),
                .work = CallSteps::uses({}, ends ? begins_middle(LayerCall::forward) : std::vector<std::uint32_t>{}),
                .scratch_bytes =
                    std::max({in_tiles_->scratch_bytes(n), last ? in_adapters_.bytes(n) : 0, ends ? query_key_bytes(n) : 0}),
                .flops = product_flops(n, in_.outputs()) / branch_tiles_};
    phase.work.push_back({normed, i == 0 ? Access::overwrite : Access::read});
    if (has_room) phase.work.push_back({room, of_tile(i)});
    if (takes) phase.work.push_back({sums.here, Access::overwrite});
    if (last) in_adapters_.name_params(phase.weights);
    if (ends && middle_at_once()) phase.flops += middle_flops(shape);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena of_room(t.work[room]);
      const auto x = CallSteps::view(t, normed, {n, config_.hidden});
      if (i == 0) norm_.forward(ctx, t.weights, x, t.x, t.saved[kStatistics]);
      const auto result = in_result(t, n, of_room);
      in_tiles_->forward(ctx, t.weights, i, result, x, Accumulate::no, ScratchArena(ctx.scratch));
      if (last) run_adapters(ctx, t, in_adapters_, result, x);
      if (takes) take_in_result(ctx, t, result, sums);
      if (!ends) return;
      norm_in_result(ctx, t, result, ScratchArena(ctx.scratch));
      save_middle(ctx, t, result);
    });
  }
  if (norms_across()) norm_across(steps, shape, sums, room);
  add_middle(steps, LayerCall::forward, shape);
  out_in_tiles(steps, shape);
}

void ResidualBranch::run_adapters(LayerContext& ctx, const LayerTensors& t, const LowRank& adapters, TensorView y,
                                  TensorView x) const {
  ScratchArena arena(ctx.scratch);
  adapters.forward(ctx, t.weights, adapters.place(arena, x.shape[0]), y, x);
}

// A tile of `out` adds to the residual or, if the result has a norm, writes the norm's input. `norms`: and norms it.
Phase ResidualBranch::out_tile_phase(std::int64_t rows, std::uint32_t tile, bool norms) const {
  Phase phase{.weights = params_of_tile(*out_tiles_, tile, false),
              .x = result_norm_ ? norms : tile == 0,
              .saved = result_norm_ ? Access::update : Access::read,
              .flops = product_flops(rows, out_.inputs()) / branch_tiles_};
  if (tile + 1 == branch_tiles_) out_adapters_.name_params(phase.weights);
  if (norms) result_norm_.name_params(phase.weights);
  if (!result_norm_ || norms) phase.y = result_norm_ ? Access::overwrite : of_tile(tile);
  return phase;
}

void ResidualBranch::run_out_tile(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile, TensorView result,
                                  TensorView x) const {
  const auto how = result_norm_ ? Accumulate::no : tile == 0 ? begin_residual(ctx, t.y, t.x) : residual_begun();
  out_tiles_->forward(ctx, t.weights, tile, result, x, how, ScratchArena(ctx.scratch));
  if (tile + 1 == branch_tiles_) run_adapters(ctx, t, out_adapters_, result, x);
}

void ResidualBranch::out_in_tiles(CallSteps& steps, BatchShape shape) const {
  const auto n = shape.tokens();
  const auto middle_room = lasting(steps, "input of the second product", saves_middle() ? 0 : middle_bytes(n));
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool last = i + 1 == branch_tiles_, norms = last && result_norm_ && !adds_up();
    auto phase = out_tile_phase(n, i, norms);
    phase.scratch_bytes = std::max(out_tiles_->scratch_bytes(n), last ? out_adapters_.bytes(n) : 0);
    if (!saves_middle()) phase.work.push_back({middle_room, i == 0 ? Access::overwrite : Access::read});
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto saved = saved_of_norms(t);
      const auto x = lasting_middle(ctx, t, middle_room, i == 0);
      run_out_tile(ctx, t, i, result_norm_ ? saved.result.result : t.y, x);
      if (norms) result_norm_.forward(ctx, t.weights, t.y, t.x, saved.result);
    });
  }
  if (adds_up()) add_result(steps, shape);
}

// The middle. If it is not saved, the first phase that uses it computes it.
TensorView ResidualBranch::lasting_middle(LayerContext& ctx, const LayerTensors& t, std::uint32_t room, bool first) const {
  ScratchArena of_room(t.work[room]);
  return saves_middle() || first ? middle(ctx, t, of_room) : take_middle(of_room, ctx.shape.tokens());
}

void ResidualBranch::backward_in_tiles(CallSteps& steps, BatchShape shape) const {
  out_input_in_tiles(steps, shape);
  add_middle(steps, LayerCall::backward, shape);
  in_input_in_tiles(steps, shape);
  out_weight_in_tiles(steps, shape);
  in_weight_in_tiles(steps, shape);
}

void ResidualBranch::out_input_in_tiles(CallSteps& steps, BatchShape shape) const {
  constexpr auto half = Half::input;
  const auto n = shape.tokens();
  const auto dmiddle = steps.room("gradient of the second product's input", config_.dtype);
  steps.reserve(dmiddle, n * out_.inputs());
  const bool at_once = middle_at_once();
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool last = i + 1 == branch_tiles_;
    Phase phase{.half = half,
                .weights = params_of_tile(*out_tiles_, i, false),
                .dy = i == 0 || !result_norm_,
                .work = CallSteps::uses({}, last ? begins_middle(LayerCall::backward) : std::vector<std::uint32_t>{}),
                .scratch_bytes = std::max(out_tiles_->scratch_bytes(n), last ? out_adapters_.bytes(n) : 0),
                .flops = product_flops(n, out_.inputs()) / branch_tiles_ + (last && at_once ? 2 * middle_flops(shape) : 0)};
    phase.work.push_back({dmiddle, of_tile(i)});
    if (last || (i == 0 && result_norm_)) phase.saved = Access::read;
    if (last && at_once) phase.carried = Access::overwrite;
    if (result_norm_) phase.carried = of_tile(i);
    if (result_norm_ && i == 0) result_norm_.name_params(phase.weights);
    if (last) out_adapters_.name_params(phase.weights);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto gradient = CallSteps::view(t, dmiddle, {n, out_.inputs()});
      if (result_norm_ && i == 0) result_norm_.input_grad(ctx, t.weights, dresult(t), t.dy, saved_of_norms(t).result, 0);
      out_tiles_->input_grad(ctx, t.weights, i, gradient, dresult(t), ScratchArena(ctx.scratch));
      if (!last) return;
      ScratchArena arena(ctx.scratch);
      out_adapters_.input_grad(ctx, t.weights, out_adapters_.place(arena, n), gradient, dresult(t));
      middle_grad(ctx, t, t.carried[kDin], gradient);
    });
  }
}

void ResidualBranch::in_input_in_tiles(CallSteps& steps, BatchShape shape) const {
  constexpr auto half = Half::input;
  const auto n = shape.tokens();
  const auto sums = add_norm_sums(steps, shape);
  norm_grad_across(steps, shape, sums);
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool first = i == 0, last = i + 1 == branch_tiles_;
    Phase phase{.half = half,
                .weights = params_of_tile(*in_tiles_, i, last || (first && query_key_norm_)),
                .x = last,
                .dy = last,
                .carried = Access::update,
                .scratch_bytes =
                    std::max({in_tiles_->scratch_bytes(n), first ? query_key_bytes(n) : 0, last ? in_adapters_.bytes(n) : 0}),
                .flops = product_flops(n, in_.outputs()) / branch_tiles_};
    if (first && norms_across()) phase.work.push_back({sums.all, Access::read});
    if (last) in_adapters_.name_params(phase.weights);
    if (last) phase.dx = Access::overwrite;
    if (last || (first && query_key_norm_)) phase.saved = Access::read;
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto dnormed = t.carried[kDnormed];
      if (first) norm_in_result_grad(ctx, t, ScratchArena(ctx.scratch), norms_across() ? t.work[sums.all] : TensorView{});
      in_tiles_->input_grad(ctx, t.weights, i, dnormed, t.carried[kDin], ScratchArena(ctx.scratch));
      if (!last) return;
      ScratchArena arena(ctx.scratch);
      in_adapters_.input_grad(ctx, t.weights, in_adapters_.place(arena, n), dnormed, t.carried[kDin]);
      const auto how = begin_residual(ctx, t.dx, t.dy);
      norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], how);
    });
  }
}

void ResidualBranch::out_weight_in_tiles(CallSteps& steps, BatchShape shape) const {
  constexpr auto half = Half::weight;
  const auto n = shape.tokens();
  const auto middle_room = lasting(steps, "input of the second product", saves_middle() ? 0 : middle_bytes(n));
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool last = i + 1 == branch_tiles_;
    Phase phase{.half = half,
                .gradients = params_of_tile(*out_tiles_, i, false),
                .dy = last || !result_norm_,
                .saved = Access::read,
                .scratch_bytes = std::max(out_tiles_->scratch_bytes(n), last ? out_adapters_.gradient_bytes(n) : 0),
                .flops = product_flops(n, out_.inputs()) / branch_tiles_};
    if (result_norm_) phase.carried = Access::read;
    if (last) {
      out_adapters_.name_params(phase.weights);
      out_adapters_.name_params(phase.gradients);
      result_norm_.name_params(phase.gradients);
    }
    if (!saves_middle()) phase.work.push_back({middle_room, i == 0 ? Access::overwrite : Access::read});
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto x = lasting_middle(ctx, t, middle_room, i == 0);
      out_tiles_->weight_grad(ctx, t.gradients, i, dresult(t), x, t.accumulate, ScratchArena(ctx.scratch));
      if (!last) return;
      ScratchArena arena(ctx.scratch);
      out_adapters_.weight_grad(ctx, t.weights, t.gradients, out_adapters_.place_gradient(arena, n), dresult(t), x,
                                t.accumulate);
      norm_result_weight_grad(ctx, t);
    });
  }
}

void ResidualBranch::in_weight_in_tiles(CallSteps& steps, BatchShape shape) const {
  constexpr auto half = Half::weight;
  const auto n = shape.tokens();
  const auto normed = steps.room("norm's result", config_.dtype);
  steps.reserve(normed, n * config_.hidden);
  const auto statistics = norm_.statistics(n);
  const auto own = round_up(statistics.bytes(), ScratchArena::kAlignBytes);
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool last = i + 1 == branch_tiles_;
    Phase phase{
        .half = half,
        .gradients = params_of_tile(*in_tiles_, i, last),
        .x = i == 0 || last,
        .carried = Access::read,
        .work = {{normed, i == 0 ? Access::overwrite : Access::read}},
        .scratch_bytes = std::max(in_tiles_->scratch_bytes(n) + (i == 0 ? own : 0), last ? in_adapters_.gradient_bytes(n) : 0),
        .flops = product_flops(n, in_.outputs()) / branch_tiles_};
    if (i == 0) phase.weights = params_of(norm_);
    if (last) {
      in_adapters_.name_params(phase.weights);
      in_adapters_.name_params(phase.gradients);
      phase.saved = Access::read;
    }
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      const auto x = CallSteps::view(t, normed, {n, config_.hidden});
      if (i == 0) norm_.forward(ctx, t.weights, x, t.x, arena.take(statistics.dtype, statistics.shape));
      in_tiles_->weight_grad(ctx, t.gradients, i, t.carried[kDin], x, t.accumulate, arena);
      if (!last) return;
      ScratchArena rest(ctx.scratch);
      in_adapters_.weight_grad(ctx, t.weights, t.gradients, in_adapters_.place_gradient(rest, n), t.carried[kDin], x,
                               t.accumulate);
      norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, t.saved[kStatistics], t.accumulate);
      if (query_key_norm_)
        query_key_norm_.weight_grad(ctx, t.gradients, saved_of_norms(t).query_key, carried_of_query_key(t), t.accumulate);
    });
  }
}

// Generation computes in the cache what a call in one phase computes in scratch.
void ResidualBranch::decode_in_tiles(CallSteps& steps, std::size_t in_cache, std::size_t middle_cache,
                                     const CallSteps::Run& middle) const {
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool last = i + 1 == branch_tiles_;
    auto weights = params_of_tile(*in_tiles_, i, true);
    if (last) in_adapters_.name_params(weights);
    steps.compute({.weights = std::move(weights),
                   .x = true,
                   .saved = Access::update,
                   .scratch_bytes = decode_tile_bytes(),
                   .flops = product_flops(1, in_.outputs()) / branch_tiles_},
                  [=, this](LayerContext& ctx, const LayerTensors& t) {
                    const auto result = t.saved[in_cache];
                    ScratchArena arena(ctx.scratch);
                    const auto normed = arena.take(config_.dtype, {1, config_.hidden}), statistics = take_statistics(arena, 1);
                    norm_.forward(ctx, t.weights, normed, t.x, statistics);
                    in_tiles_->forward(ctx, t.weights, i, result, normed, Accumulate::no, arena);
                    if (!last) return;
                    in_adapters_.forward(ctx, t.weights, in_adapters_.place(arena, 1), result, normed);
                    norm_position(ctx, t.weights, result, ScratchArena(ctx.scratch));
                    middle(ctx, t);
                  });
  }
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool norms = i + 1 == branch_tiles_ && result_norm_;
    auto phase = out_tile_phase(1, i, norms);
    phase.scratch_bytes = decode_tile_bytes();
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto result = result_norm_ ? t.saved.back() : t.y;
      run_out_tile(ctx, t, i, result, t.saved[middle_cache]);
      ScratchArena arena(ctx.scratch);
      if (norms) result_norm_.forward(ctx, t.weights, t.y, t.x, {result, take_statistics(arena, 1)});
    });
  }
}

std::uint64_t ResidualBranch::decode_tile_bytes() const {
  ScratchArena arena;
  static_cast<void>(arena.take(config_.dtype, {1, config_.hidden}));
  static_cast<void>(take_statistics(arena, 1));
  const auto adapters = std::max(in_adapters_.bytes(1), out_adapters_.bytes(1));
  return std::max(arena.peak_bytes() + tile_bytes(1) + adapters, norm_position_bytes());
}

}  // namespace terrace::layers
