// A residual branch in tiles of its inner features: y = x + Σ out_t(middle_t(in_t(norm(x)))). A phase uses one tile of both
// products' weights and has the inner activations of one tile, so both are 1/T of the whole branch's.
//
// With tiles of rows (Arctic Long Sequence Training, Bekman et al. 2025) a phase computes the micro-batch some rows at a time,
// so inner activations are 1/R of all; the weights need as much memory as without. Gradients of weights are sums over the tiles
// of rows, added one after the other, like those of the head's slices.
//
// Nothing inside is saved for the backward: each tile computes its part of `in` again, five products instead of four. Without
// tiles of features, the result of `out` is one product; with T tiles it is a sum of T products, each rounded to the dtype of
// activations.
#include <algorithm>

#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {

// The scratch of a phase: the statistics of all rows, and the tensors of a tile of them.
struct ResidualBranch::Inner {
  Inner(const ResidualBranch& branch, ScratchArena& arena, std::int64_t rows, bool backward)
      : each(ceil_div(rows, std::int64_t{branch.inner_rows_})),
        statistics(arena.take(branch.norm_.statistics(rows))),
        normed(arena.take(branch.config_.dtype, {each, branch.config_.hidden})),
        in_result(arena.take(branch.config_.dtype, {each, branch.in_.tile().outputs()})),
        middle(arena.take(branch.config_.dtype, {each, branch.out_.tile().inputs()})) {
    if (backward) din = arena.take(branch.config_.dtype, in_result.shape);
  }
  [[nodiscard]] Inner first_rows(std::int64_t count) const {
    auto some = *this;
    for (auto* const view : {&some.normed, &some.in_result, &some.middle}) *view = row_slice(*view, 0, count);
    if (!din.empty()) some.din = row_slice(din, 0, count);
    return some;
  }
  std::int64_t each;  // rows
  TensorView statistics, normed, in_result, middle, din;
};

void ResidualBranch::describe_inner(CallSteps& steps, LayerCall call, BatchShape shape) const {
  for (std::uint32_t tile = 0; tile < in_.tiles(); ++tile)
    call == LayerCall::backward ? inner_backward(steps, shape, tile) : inner_forward(steps, call, shape, tile);
  if (call == LayerCall::forward && sums_result()) add_result(steps, shape);
}

// In generation, the cache holds the input of the norm of the result, to which each tile adds.
void ResidualBranch::inner_forward(CallSteps& steps, LayerCall call, BatchShape shape, std::uint32_t tile) const {
  const bool forward = call == LayerCall::forward, norms = result_norm_ && in_.is_last(tile) && !sums_result();
  const auto access = tile == 0 ? Access::overwrite : Access::update;
  ScratchArena measured;
  const auto each = Inner(*this, measured, shape.tokens(), false).each;
  const auto all_rows = static_cast<double>(shape.tokens());
  Phase phase{.weights = inner_params(tile),
              .x = true,
              .scratch_bytes = measured.peak_bytes() + in_.scratch_bytes(tile, each, Calls::forward) +
                               out_.scratch_bytes(tile, each, Calls::forward),
              .flops = forward_flops(shape) / in_.tiles(),
              .float8_flops = float8(forward_flops(shape) / in_.tiles()),
              .float8_bytes = in_.rounding_bytes(true, all_rows, 0) + out_.rounding_bytes(true, all_rows, 0)};
  if (forward || result_norm_) phase.saved = access;
  if (!result_norm_) phase.y = access;
  if (norms) phase.y = Access::overwrite;
  if (norms) result_norm_.name_params(phase.weights);
  steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena arena(ctx.scratch);
    const Inner all(*this, arena, ctx.shape.tokens(), false);
    const ResultNorm::Saved of_norm =
        forward ? saved_of_norms(t).result : ResultNorm::Saved{result_norm_ ? t.saved.back() : TensorView{}, all.statistics};
    const auto result = result_norm_ ? of_norm.result : t.y;
    const auto how = tile != 0 ? Accumulate::yes : result_norm_ ? Accumulate::no : begin_residual(ctx, t.y, t.x);
    const auto in = in_.prepare(ctx, t.weights, tile, each, arena, Calls::forward),
               out = out_.prepare(ctx, t.weights, tile, each, arena, Calls::forward);
    const NormStatistics statistics(forward ? t.saved[kStatistics] : all.statistics);
    each_row_tile(t.x.shape[0], [&](comm::Block rows) {
      const auto some = all.first_rows(rows.count);
      const auto of = [&](const TensorView& whole) { return row_slice(whole, rows.begin, rows.count); };
      norm_.forward(ctx, t.weights, some.normed, of(t.x), statistics.rows(rows.begin, rows.count));
      in_.forward(ctx, in, some.in_result, some.normed, Accumulate::no);
      make_middle(ctx, t, some.middle, some.in_result);
      out_.forward(ctx, out, of(result), some.middle, how);
    });
    if (norms) result_norm_.forward(ctx, t.weights, t.y, t.x, of_norm);
  });
}

std::vector<PhaseParam> ResidualBranch::inner_params(std::uint32_t tile) const {
  auto all = params_of(norm_);
  for (const auto* const product : {&in_, &out_}) std::ranges::copy(product->params(tile), std::back_inserter(all));
  return all;
}

void ResidualBranch::inner_backward(CallSteps& steps, BatchShape shape, std::uint32_t tile) const {
  ScratchArena measured;
  const auto each = Inner(*this, measured, shape.tokens(), true).each;
  const auto products = in_.scratch_bytes(tile, each, Calls::both) + out_.scratch_bytes(tile, each, Calls::input_grad),
             gradients = std::max(in_.gradient_bytes(tile, each), out_.gradient_bytes(tile, each));
  Phase phase{.weights = inner_params(tile),
              .gradients = inner_params(tile),
              .x = true,
              .dy = true,
              .saved = Access::read,
              .carried = tile == 0 ? Access::overwrite : Access::update,
              .scratch_bytes = measured.peak_bytes() + products + gradients,
              .flops = (3 * product_flops(shape, in_.outputs()) + 2 * product_flops(shape, out_.inputs())) / in_.tiles()};
  phase.float8_flops = float8(phase.flops);
  const auto rows = static_cast<double>(shape.tokens());  // rounded for each product
  phase.float8_bytes = in_.rounding_bytes(true, 2 * rows, 2 * rows) + out_.rounding_bytes(true, rows, 2 * rows);
  if (tile == 0) result_norm_.name_params(phase.weights);
  if (in_.is_last(tile)) phase.dx = Access::overwrite;
  if (in_.is_last(tile)) result_norm_.name_params(phase.gradients);
  steps.compute(std::move(phase), [this, tile](LayerContext& ctx, const LayerTensors& t) { run_inner_backward(ctx, t, tile); });
}

void ResidualBranch::run_inner_backward(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile) const {
  const bool input_half = has(ctx.half, Half::input), weight_half = has(ctx.half, Half::weight);
  ScratchArena arena(ctx.scratch);
  const Inner all(*this, arena, ctx.shape.tokens(), true);
  if (result_norm_ && tile == 0 && input_half)
    result_norm_.input_grad(ctx, t.weights, dresult(t), t.dy, saved_of_norms(t).result, 0);
  const auto in = in_.prepare(ctx, t.weights, tile, all.each, arena, Calls::both),
             out = out_.prepare(ctx, t.weights, tile, all.each, arena, Calls::input_grad);
  const auto dnormed = t.carried[kDnormed];
  each_row_tile(ctx.shape.tokens(), [&](comm::Block rows) {
    const auto some = all.first_rows(rows.count);
    const auto of = [&](const TensorView& whole) { return row_slice(whole, rows.begin, rows.count); };
    const auto accumulate = rows.begin == 0 ? t.accumulate : Accumulate::yes;
    const auto dy = of(dresult(t));
    norm_.forward(ctx, t.weights, some.normed, of(t.x), NormStatistics(all.statistics).rows(rows.begin, rows.count));
    in_.forward(ctx, in, some.in_result, some.normed, Accumulate::no);
    if (weight_half) {
      make_middle(ctx, t, some.middle, some.in_result);
      out_.weight_grad(ctx, t.weights, t.gradients, tile, dy, some.middle, accumulate, arena);
    }
    const auto dmiddle = some.middle;  // no longer needed
    out_.input_grad(ctx, out, dmiddle, dy);
    inner_grad(ctx, some.din, dmiddle, some.in_result);
    if (input_half) in_.input_grad(ctx, in, of(dnormed), some.din);
    if (weight_half) in_.weight_grad(ctx, t.weights, t.gradients, tile, some.din, some.normed, accumulate, arena);
  });
  if (tile == 0 && weight_half) out_.bias_grad(ctx, t.gradients, dresult(t), t.accumulate);
  if (!in_.is_last(tile)) return;
  if (input_half) {
    const auto how = begin_residual(ctx, t.dx, t.dy);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, all.statistics, how);
  }
  if (!weight_half) return;
  norm_weight_grad(ctx, t, all.statistics);
  norm_result_weight_grad(ctx, t);
}

}  // namespace terrace::layers
