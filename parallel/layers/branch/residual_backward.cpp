// The backward of a residual branch in turns, as its forward (residual_forward.cpp).
//
//   at once    out's dx, middle's gradient │ in's dx, norm's gradient, residual │ out's dW │ in's dW, norm's gradient
//   in tiles   out's dx 0 │ … │ middle's gradient │ in's dx 0 │ … │ out's dW 0 │ … │ norm, in's dW 0 │ … │ norm's gradient
//   in pieces  cut dy, or the result's gradient │ gathers beside out's dx │ middle's gradient │ norm again │ in's dx 0 │ add 0
//              │ … │ gathers of x │ out's dW │ norm's gradient, residual │ in's dW
//
// In tiles, the gradient of an input is a sum over tiles, rounded to the dtype of activations after each tile. In pieces, one
// exchange overlaps with no product: the first gather.
#include <algorithm>
#include <utility>

#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {

void ResidualBranch::backward_in_turns(CallSteps& steps, BatchShape shape) const {
  const auto rows = pieces(steps, "gradient of the result or of norm's", shape, in_.tiles() == 1),
             x_rows = pieces(steps, "norm's result", shape, false);
  if (rows.shared()) cut_dy(steps, rows);
  out_input(steps, shape, rows);
  add_middle(steps, LayerCall::backward, shape);
  if (rows.shared()) cut_norm(steps, shape, x_rows, Half::weight);
  in_input(steps, shape, rows);
  for (std::uint32_t i = 0; i < x_rows.count(); ++i) x_rows.gather(steps, Half::weight, i);
  out_weight(steps, shape, x_rows);
  if (rows.shared()) {
    Phase last{};  // the last sum may read its room until the product before this phase has begun
    last.work = CallSteps::uses(rows.own_rooms(), {});
    rows.keep_last(last, rows.count());
    residual_grad(steps, std::move(last.work), take_of(rows));
  }
  in_weight(steps, shape, x_rows);
  count_carried_codes(steps, shape);
}

// Exchanges dy, or the gradient of the result's norm; the weight half needs all rows of it.
void ResidualBranch::cut_dy(CallSteps& steps, const RowPieces& rows) const {
  Phase cut{.half = Half::input, .weights = params_of(result_norm_), .dy = true, .work = CallSteps::uses({}, rows.own_rooms())};
  if (result_norm_) cut.saved = Access::read;
  steps.compute(std::move(cut), [=, this](LayerContext& ctx, const LayerTensors& t) {
    std::int64_t first = 0;
    rows.each_own(t, t.dy, [&](const TensorView& own, const TensorView& dy) {
      result_norm_ ? result_norm_.input_grad(ctx, t.weights, own, t.dy, saved_of_norms(t).result, first)
                   : ctx.math.convert(ctx.stream, own, dy);
      first += own.shape[0];
    });
  });
}

void ResidualBranch::out_input(CallSteps& steps, BatchShape shape, const RowPieces& rows) const {
  const auto n = shape.tokens();
  const bool shared = rows.shared(), carries = shared || result_norm_ || carries_codes();
  const HeldTensor dmiddle(steps, "gradient of the second product's input", config_.dtype, {n, out_.inputs()},
                           out_.tiles() * rows.count() > 1);
  rows.gather(steps, Half::input, 0);
  each_turn(out_, rows, [&](const Turn& turn) {
    if (turn.tile == 0) rows.gather(steps, Half::input, turn.piece + 1);
    const bool norms = turn.first && result_norm_ && !shared;
    Phase phase{.half = Half::input,
                .weights = out_.params(turn.tile),
                .dy = !shared && (norms || !result_norm_),
                .scratch_bytes = dmiddle.scratch_bytes() + out_.scratch_bytes(turn.tile, n, Calls::input_grad),
                .flops = turn_flops(shape, out_, out_.inputs(), rows, turn) + (turn.last ? 2 * flops_at_once(shape) : 0),
                .float8_flops = float8(turn_flops(shape, out_, out_.inputs(), rows, turn)),
                .float8_bytes = out_.rounding_bytes(true, 0, turn_rows(shape, rows, turn), carries_codes())};
    if (turn.last) phase.work = CallSteps::uses({}, begins_middle(LayerCall::backward));
    if (turn.last || norms) phase.saved = Access::read;
    if (carries) phase.carried = turn.writes();
    if (!carries && turn.last && middle_at_once()) phase.carried = Access::overwrite;
    if (norms) result_norm_.name_params(phase.weights);
    dmiddle.use(phase, turn.writes());
    rows.use_all(phase, turn.piece, Access::read);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      const auto gradient = dmiddle.view(t, arena);
      if (norms) result_norm_.input_grad(ctx, t.weights, dresult(t), t.dy, saved_of_norms(t).result, 0);
      const auto ready = out_.prepare(ctx, t.weights, turn.tile, n, arena, Calls::input_grad);
      rows.each_rank(t, turn.piece, dresult(t), [&](const TensorView& dy, std::int64_t at) {
        out_.input_grad(ctx, ready, row_slice(gradient, at, dy.shape[0]), dy, carried_codes(t, kOfOut));
        if (shared && turn.tile == 0) ctx.math.convert(ctx.stream, row_slice(t.carried[kDout], at, dy.shape[0]), dy);
      });
      if (turn.last) middle_grad(ctx, t, t.carried[kDin], gradient);
    });
  });
}

void ResidualBranch::in_input(CallSteps& steps, BatchShape shape, const RowPieces& rows) const {
  const auto n = shape.tokens();
  const auto sums = add_norm_sums(steps, shape);
  norm_grad_across(steps, shape, sums);
  each_turn(in_, rows, [&](const Turn& turn) {
    const bool norms = turn.first && query_key_norm_, ends = turn.last && !rows.shared();
    Phase phase{.half = Half::input,
                .weights = in_.params(turn.tile),
                .x = ends,
                .dy = ends,
                .carried = rows.shared() && !norms ? Access::read : Access::update,
                .scratch_bytes =
                    std::max(in_.scratch_bytes(turn.tile, n, Calls::input_grad), norms ? query_key_norm_.scratch_bytes(n) : 0),
                .flops = turn_flops(shape, in_, in_.outputs(), rows, turn),
                .float8_flops = float8(turn_flops(shape, in_, in_.outputs(), rows, turn)),
                .float8_bytes = in_.rounding_bytes(true, 0, turn_rows(shape, rows, turn), carries_codes())};
    if (norms) query_key_norm_.name_params(phase.weights);
    if (norms && norms_across()) phase.work.push_back({sums.all, Access::read});
    if (norms || ends) phase.saved = Access::read;
    if (ends) norm_.name_params(phase.weights);
    if (ends) phase.dx = Access::overwrite;
    rows.use_all(phase, turn.piece, turn.tile == 0 ? Access::overwrite : Access::update);
    if (turn.last_tile) rows.keep_last(phase, turn.piece);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      if (norms) norm_in_result_grad(ctx, t, sums);
      const auto ready = in_.prepare(ctx, t.weights, turn.tile, n, arena, Calls::input_grad);
      const auto dnormed = t.carried[kDnormed], din = t.carried[kDin];
      rows.each_rank(t, turn.piece, dnormed, [&](const TensorView& dx, std::int64_t at) {
        in_.input_grad(ctx, ready, dx, row_slice(din, at, dx.shape[0]), carried_codes(t, kOfIn));
      });
      if (!ends) return;
      const auto how = begin_residual(ctx, t.dx, t.dy);
      norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], how);
    });
    if (turn.last_tile) rows.scatter(steps, Half::input, turn.piece);
  });
}

void ResidualBranch::out_weight(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const {
  const auto n = shape.tokens();
  const auto all = static_cast<double>(n);
  const bool shared = x_rows.shared();
  const auto middle = held_middle(steps, shape, out_.tiles() > 1);
  each_turn(out_, RowPieces(), [&](const Turn& turn) {
    Phase phase{.half = Half::weight,
                .weights = out_.adapters(turn.tile),
                .gradients = out_.params(turn.tile),
                .dy = result_norm_ ? turn.last : !shared,
                .saved = Access::read,
                .scratch_bytes = middle.scratch_bytes() + out_.gradient_bytes(turn.tile, n, carries_codes()),
                .flops = turn_flops(shape, out_, out_.inputs(), RowPieces(), turn),
                .float8_flops = float8(turn_flops(shape, out_, out_.inputs(), RowPieces(), turn)),
                .float8_bytes = out_.rounding_bytes(false, all, carries_codes() ? 0 : all)};
    if (shared || result_norm_ || carries_codes()) phase.carried = Access::read;
    if (carries_codes() && !result_norm_) phase.float8_bytes -= carried_bytes(shape, false);  // it reads only codes
    if (turn.last) result_norm_.name_params(phase.gradients);
    middle.use(phase, turn.reads());
    x_rows.keep_own(phase);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      const auto x = middle_in(ctx, t, middle, arena, turn.first);
      out_.weight_grad(ctx, t.weights, t.gradients, turn.tile, dresult(t), x, t.accumulate, arena, carried_codes(t, kOfOut));
      if (turn.last) norm_result_weight_grad(ctx, t);
    });
  });
}

// The norm's result is gathered, or computed again.
void ResidualBranch::in_weight(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const {
  const auto n = shape.tokens();
  const HeldTensor normed(steps, "norm's result", config_.dtype, {n, config_.hidden}, in_.tiles() > 1);
  const auto all = static_cast<double>(n);
  const auto of_statistics = scratch_of({norm_.statistics(n)});
  each_turn(in_, RowPieces(), [&](const Turn& turn) {
    const bool gathers = turn.first && x_rows.shared(), norms = turn.first && !x_rows.shared();
    Phase phase{.half = Half::weight,
                .weights = in_.adapters(turn.tile),
                .gradients = in_.params(turn.tile),
                .x = norms || turn.last,
                .carried = Access::read,
                .work = CallSteps::uses(gathers ? x_rows.all_rooms() : std::vector<std::uint32_t>{}, {}),
                .scratch_bytes =
                    normed.scratch_bytes() + (norms ? of_statistics : 0) + in_.gradient_bytes(turn.tile, n, carries_codes()),
                .flops = turn_flops(shape, in_, in_.outputs(), RowPieces(), turn),
                .float8_flops = float8(turn_flops(shape, in_, in_.outputs(), RowPieces(), turn)),
                .float8_bytes = in_.rounding_bytes(false, all, carries_codes() ? 0 : all)};
    if (norms) norm_.name_params(phase.weights);
    if (turn.last) norm_.name_params(phase.gradients);
    if (turn.last) query_key_norm_.name_params(phase.gradients);
    if (turn.last && (!norms || query_key_norm_)) phase.saved = Access::read;
    normed.use(phase, turn.reads());
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      const auto x = normed.view(t, arena), statistics = norms ? arena.take(norm_.statistics(n)) : t.saved[kStatistics];
      for (std::uint32_t i = 0; gathers && i < x_rows.count(); ++i)
        x_rows.each_rank(t, i, x, [&](const TensorView& some, std::int64_t at) {
          ctx.math.convert(ctx.stream, row_slice(x, at, some.shape[0]), some);
        });
      if (norms) norm_.forward(ctx, t.weights, x, t.x, statistics);
      in_.weight_grad(ctx, t.weights, t.gradients, turn.tile, t.carried[kDin], x, t.accumulate, arena, carried_codes(t, kOfIn));
      if (turn.last) norm_weight_grad(ctx, t, statistics);
    });
  });
}

}  // namespace terrace::layers
