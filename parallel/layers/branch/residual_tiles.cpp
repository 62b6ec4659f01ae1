// A residual branch whose two products run in tiles of their results (tiled_projection.h): a phase uses one tile of one matrix,
// or of its gradient, so a branch can train even if its matrices are larger than the device. All of its activations must fit.
//
//   forward    norm, in 0 │ in 1 │ … │ middle │ out 0, residual │ out 1 │ …
//   backward   out's dx 0 │ … │ middle's gradient │ in's dx 0 │ … │ out's dW 0 │ … │ norm, in's dW 0 │ … │ norm's gradient
//
// A result is the same product as without tiles, some columns at a time. The gradient of an input is a sum over tiles, rounded
// to the dtype of activations after each tile.
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
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool last = i + 1 == branch_tiles_;
    Phase phase{.weights = params_of_tile(*in_tiles_, i, i == 0 || (last && query_key_norm_)),
                .x = i == 0,
                .saved = of_tile(i),
                .work = CallSteps::uses({}, last ? begins_middle(LayerCall::forward) : std::vector<std::uint32_t>{}),
                .scratch_bytes = std::max(in_tiles_->scratch_bytes(n), last ? query_key_bytes(n) : 0),
                .flops = product_flops(n, in_.outputs()) / branch_tiles_};
    phase.work.push_back({normed, i == 0 ? Access::overwrite : Access::read});
    if (has_room) phase.work.push_back({room, of_tile(i)});
    if (last && middle_at_once()) phase.flops += middle_flops(shape);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena of_room(t.work[room]);
      const auto x = CallSteps::view(t, normed, {n, config_.hidden});
      if (i == 0) norm_.forward(ctx, t.weights, x, t.x, t.saved[kStatistics]);
      const auto result = in_result(t, n, of_room);
      in_tiles_->forward(ctx, t.weights, i, result, x, Accumulate::no, ScratchArena(ctx.scratch));
      if (!last) return;
      norm_in_result(ctx, t, result, ScratchArena(ctx.scratch));
      save_middle(ctx, t, result);
    });
  }
  add_middle(steps, LayerCall::forward, shape);
  out_in_tiles(steps, shape);
}

void ResidualBranch::out_in_tiles(CallSteps& steps, BatchShape shape) const {
  const auto n = shape.tokens();
  const auto middle_room = lasting(steps, "input of the second product", saves_middle() ? 0 : middle_bytes(n));
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    Phase phase{.weights = params_of_tile(*out_tiles_, i, false),
                .x = i == 0,
                .y = of_tile(i),
                .saved = Access::read,
                .scratch_bytes = out_tiles_->scratch_bytes(n),
                .flops = product_flops(n, out_.inputs()) / branch_tiles_};
    if (!saves_middle()) phase.work.push_back({middle_room, i == 0 ? Access::overwrite : Access::read});
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto how = i == 0 ? begin_residual(ctx, t.y, t.x) : residual_begun();
      out_tiles_->forward(ctx, t.weights, i, t.y, lasting_middle(ctx, t, middle_room, i == 0), how, ScratchArena(ctx.scratch));
    });
  }
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
                .dy = true,
                .work = CallSteps::uses({}, last ? begins_middle(LayerCall::backward) : std::vector<std::uint32_t>{}),
                .scratch_bytes = out_tiles_->scratch_bytes(n),
                .flops = product_flops(n, out_.inputs()) / branch_tiles_ + (last && at_once ? 2 * middle_flops(shape) : 0)};
    phase.work.push_back({dmiddle, of_tile(i)});
    if (last) phase.saved = Access::read;
    if (last && at_once) phase.carried = Access::overwrite;
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto gradient = CallSteps::view(t, dmiddle, {n, out_.inputs()});
      out_tiles_->input_grad(ctx, t.weights, i, gradient, t.dy, ScratchArena(ctx.scratch));
      if (last) middle_grad(ctx, t, t.carried[kDin], gradient);
    });
  }
}

void ResidualBranch::in_input_in_tiles(CallSteps& steps, BatchShape shape) const {
  constexpr auto half = Half::input;
  const auto n = shape.tokens();
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool first = i == 0, last = i + 1 == branch_tiles_;
    Phase phase{.half = half,
                .weights = params_of_tile(*in_tiles_, i, last || (first && query_key_norm_)),
                .x = last,
                .dy = last,
                .carried = Access::update,
                .scratch_bytes = std::max(in_tiles_->scratch_bytes(n), first ? query_key_bytes(n) : 0),
                .flops = product_flops(n, in_.outputs()) / branch_tiles_};
    if (last) phase.dx = Access::overwrite;
    if (last || (first && query_key_norm_)) phase.saved = Access::read;
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto dnormed = t.carried[kDnormed];
      if (first) norm_in_result_grad(ctx, t, ScratchArena(ctx.scratch));
      in_tiles_->input_grad(ctx, t.weights, i, dnormed, t.carried[kDin], ScratchArena(ctx.scratch));
      if (!last) return;
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
    Phase phase{.half = half,
                .gradients = params_of_tile(*out_tiles_, i, false),
                .dy = true,
                .saved = Access::read,
                .scratch_bytes = out_tiles_->scratch_bytes(n),
                .flops = product_flops(n, out_.inputs()) / branch_tiles_};
    if (!saves_middle()) phase.work.push_back({middle_room, i == 0 ? Access::overwrite : Access::read});
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      out_tiles_->weight_grad(ctx, t.gradients, i, t.dy, lasting_middle(ctx, t, middle_room, i == 0), t.accumulate,
                              ScratchArena(ctx.scratch));
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
    Phase phase{.half = half,
                .gradients = params_of_tile(*in_tiles_, i, last),
                .x = i == 0 || last,
                .carried = Access::read,
                .work = {{normed, i == 0 ? Access::overwrite : Access::read}},
                .scratch_bytes = in_tiles_->scratch_bytes(n) + (i == 0 ? own : 0),
                .flops = product_flops(n, in_.outputs()) / branch_tiles_};
    if (i == 0) phase.weights = params_of(norm_);
    if (last) phase.saved = Access::read;
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      const auto x = CallSteps::view(t, normed, {n, config_.hidden});
      if (i == 0) norm_.forward(ctx, t.weights, x, t.x, arena.take(statistics.dtype, statistics.shape));
      in_tiles_->weight_grad(ctx, t.gradients, i, t.carried[kDin], x, t.accumulate, arena);
      if (last) norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, t.saved[kStatistics], t.accumulate);
      if (last && query_key_norm_)
        query_key_norm_.weight_grad(ctx, t.gradients, saved_of_norms(t).query_key, carried_of_query_key(t), t.accumulate);
    });
  }
}

// Generation computes in the cache what a call in one phase computes in scratch.
void ResidualBranch::decode_in_tiles(CallSteps& steps, std::size_t in_cache, std::size_t middle_cache,
                                     const CallSteps::Run& middle) const {
  for (std::uint32_t i = 0; i < branch_tiles_; ++i) {
    const bool last = i + 1 == branch_tiles_;
    steps.compute({.weights = params_of_tile(*in_tiles_, i, true),
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
                    norm_position(ctx, t.weights, result, ScratchArena(ctx.scratch));
                    middle(ctx, t);
                  });
  }
  for (std::uint32_t i = 0; i < branch_tiles_; ++i)
    steps.compute({.weights = params_of_tile(*out_tiles_, i, false),
                   .x = i == 0,
                   .y = of_tile(i),
                   .saved = Access::read,
                   .scratch_bytes = decode_tile_bytes(),
                   .flops = product_flops(1, out_.inputs()) / branch_tiles_},
                  [=, this](LayerContext& ctx, const LayerTensors& t) {
                    const auto how = i == 0 ? begin_residual(ctx, t.y, t.x) : residual_begun();
                    out_tiles_->forward(ctx, t.weights, i, t.y, t.saved[middle_cache], how, ScratchArena(ctx.scratch));
                  });
}

std::uint64_t ResidualBranch::decode_tile_bytes() const {
  ScratchArena arena;
  static_cast<void>(arena.take(config_.dtype, {1, config_.hidden}));
  static_cast<void>(take_statistics(arena, 1));
  return std::max(arena.peak_bytes() + tile_bytes(1), norm_position_bytes());
}

}  // namespace terrace::layers
