// The forward of a residual branch in turns: each phase of a product computes one tile of its weights for one piece of the
// rows. The phases are the same on all tensor ranks, although only one of them adds the residual: all ranks must have the same
// program.
//
//   at once    norm, in, middle │ out, residual
//   in tiles   norm, in 0 │ in 1 │ … │ middle │ out 0, residual │ out 1 │ …
//   in pieces  norm │ gather 0 │ gather 1 │ in 0 │ gather 2 │ in 1 │ … │ middle │ out 0 │ add 0 │ out 1 │ add 1 │ …
//              │ norm of the result, residual
//
// Norms of q and k across ranks, a middle of several phases, and a result that tensor ranks add up before its norm have further
// phases. Pieces are exchanged at the same time as the products of other pieces run (row_pieces.h), except for the first
// gathers and the last sum. With tiles and pieces, the first tile's products run beside the gathers, the last one's beside the
// sums. A result in tiles is the same product as without, some columns at a time.
#include <algorithm>
#include <utility>

#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {

RowPieces ResidualBranch::pieces(CallSteps& steps, const std::string& name, BatchShape shape, bool in_turn) const {
  if (!on_shares()) return {};
  return {steps, name, config_.dtype, config_.tensor(), rows_of(shape), config_.hidden, in_turn};
}

// The norm of this rank's rows. The weight half computes it again, with the statistics in scratch.
void ResidualBranch::cut_norm(CallSteps& steps, BatchShape shape, const RowPieces& rows, Half half) const {
  const auto again = norm_.statistics(rows_of(shape));
  Phase phase{.half = half, .weights = params_of(norm_), .x = true, .work = CallSteps::uses({}, rows.own_rooms())};
  if (half == Half::weight)
    phase.scratch_bytes = again.bytes();
  else
    phase.saved = Access::overwrite;
  steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
    const NormStatistics statistics(half == Half::weight ? TensorView{ctx.scratch.data, again.dtype, again.shape}
                                                         : t.saved[kStatistics]);
    std::int64_t begin = 0;
    rows.each_own(t, t.x, [&](const TensorView& normed, const TensorView& x) {
      norm_.forward(ctx, t.weights, normed, x, statistics.rows(begin, x.shape[0]));
      begin += x.shape[0];
    });
  });
}

ResidualBranch::Take ResidualBranch::take_of(const RowPieces& rows) {
  return [rows](LayerContext& ctx, const LayerTensors& t, const TensorView& to, Accumulate how) {
    rows.each_own(t, to, [&](const TensorView& sum, const TensorView& at) { ctx.math.convert(ctx.stream, at, sum, how); });
  };
}

void ResidualBranch::forward_in_turns(CallSteps& steps, BatchShape shape) const {
  const bool one_tile = in_.tiles() == 1;  // pieces of all ranks' rows must last for all tiles
  const auto rows = pieces(steps, "rows of norm's result, or of the branch's", shape, one_tile);
  if (rows.shared()) cut_norm(steps, shape, rows, Half::both);
  in_forward(steps, shape, rows);
  add_middle(steps, LayerCall::forward, shape);
  out_forward(steps, shape, rows);
  if (rows.shared()) end_forward(steps, CallSteps::uses(rows.own_rooms(), {}), take_of(rows));
  if (sums_result()) add_result(steps, shape);
}

void ResidualBranch::in_forward(CallSteps& steps, BatchShape shape, const RowPieces& rows) const {
  const auto n = shape.tokens();
  const bool several = in_.tiles() * rows.count() > 1, shared = rows.shared();
  const HeldTensor normed(steps, "norm's result", config_.dtype, {shared ? 0 : n, config_.hidden}, several);
  const auto result = held_in_result(steps, shape, several || norms_across());
  const auto sums = add_norm_sums(steps, shape);
  rows.gather(steps, Half::both, 0);
  each_turn(in_, rows, [&](const Turn& turn) {
    if (turn.tile == 0) rows.gather(steps, Half::both, turn.piece + 1);
    const bool norms = turn.first && !shared, ends = turn.last && !norms_across(), takes = turn.last && norms_across();
    Phase phase{.weights = in_.params(turn.tile),
                .x = norms,
                .saved = norms ? Access::overwrite : Access::update,
                .scratch_bytes =
                    result.scratch_bytes() + std::max(normed.scratch_bytes() + in_.scratch_bytes(turn.tile, n, Calls::forward),
                                                      ends ? query_key_norm_.scratch_bytes(n) : 0),
                .flops = turn_flops(shape, in_, in_.outputs(), rows, turn) + (ends ? flops_at_once(shape) : 0),
                .float8_flops = float8(turn_flops(shape, in_, in_.outputs(), rows, turn)),
                .float8_bytes = in_.rounding_bytes(true, turn_rows(shape, rows, turn), 0)};
    if (norms) norm_.name_params(phase.weights);
    if (ends) query_key_norm_.name_params(phase.weights);
    if (ends) phase.work = CallSteps::uses({}, begins_middle(LayerCall::forward));
    if (takes) phase.work.push_back({sums.here, Access::overwrite});
    normed.use(phase, turn.reads());
    result.use(phase, turn.writes());
    rows.use_all(phase, turn.piece, Access::read);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      const auto to = in_result(t, result, arena);
      auto room = arena;  // the norms of q and k use it, too
      const auto x = normed.view(t, room);
      if (norms) norm_.forward(ctx, t.weights, x, t.x, t.saved[kStatistics]);
      const auto ready = in_.prepare(ctx, t.weights, turn.tile, n, room, Calls::forward);
      rows.each_rank(t, turn.piece, x, [&](const TensorView& some, std::int64_t at) {
        in_.forward(ctx, ready, row_slice(to, at, some.shape[0]), some, Accumulate::no);
      });
      if (takes) take_in_result(ctx, t, to, sums);
      if (!ends) return;
      query_key_norm_.forward(ctx, t.weights, to, saved_of_norms(t).query_key, arena, {});
      save_middle(ctx, t, to);
    });
  });
  if (norms_across()) norm_across(steps, shape, sums, result);
}

void ResidualBranch::out_forward(CallSteps& steps, BatchShape shape, const RowPieces& rows) const {
  const auto n = shape.tokens();
  const auto middle = held_middle(steps, shape, out_.tiles() * rows.count() > 1);
  each_turn(out_, rows, [&](const Turn& turn) {
    const bool norms = turn.last && result_norm_ && !rows.shared() && !sums_result();
    auto phase = out_phase(turn, norms);
    phase.scratch_bytes = middle.scratch_bytes() + out_.scratch_bytes(turn.tile, n, Calls::forward);
    phase.flops = turn_flops(shape, out_, out_.inputs(), rows, turn);
    phase.float8_flops = float8(phase.flops);
    phase.float8_bytes = out_.rounding_bytes(true, turn_rows(shape, rows, turn), 0);
    middle.use(phase, turn.reads());
    rows.use_all(phase, turn.piece, turn.tile == 0 ? Access::overwrite : Access::update);
    if (turn.last_tile) rows.keep_last(phase, turn.piece);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      const auto from = middle_in(ctx, t, middle, arena, turn.first);
      run_out(ctx, t, turn, rows, from, saved_of_norms(t).result, norms, arena);
    });
    if (turn.last_tile) rows.scatter(steps, Half::both, turn.piece);
  });
}

// A product adds to the residual or, if the result has a norm, writes the norm's input. `norms`: and norms it.
Phase ResidualBranch::out_phase(const Turn& turn, bool norms) const {
  Phase phase{.weights = out_.params(turn.tile), .saved = Access::read};
  if (norms) result_norm_.name_params(phase.weights);
  if (on_shares()) return phase;
  if (result_norm_) phase.saved = Access::update;
  phase.x = result_norm_ ? norms : turn.first;
  if (!result_norm_ || norms) phase.y = result_norm_ ? Access::overwrite : turn.writes();
  return phase;
}

void ResidualBranch::run_out(LayerContext& ctx, const LayerTensors& t, const Turn& turn, const RowPieces& rows,
                             TensorView middle, const ResultNorm::Saved& saved, bool norms, ScratchArena arena) const {
  const bool adds = !on_shares() && !result_norm_;
  const auto how = adds && config_.tensor().leads() ? Accumulate::yes : Accumulate::no;
  if (adds && turn.first) begin_residual(ctx, t.y, t.x);
  const auto ready = out_.prepare(ctx, t.weights, turn.tile, middle.shape[0], arena, Calls::forward);
  rows.each_rank(t, turn.piece, result_norm_ ? saved.result : t.y, [&](const TensorView& to, std::int64_t at) {
    out_.forward(ctx, ready, to, row_slice(middle, at, to.shape[0]), how);
  });
  if (norms) result_norm_.forward(ctx, t.weights, t.y, t.x, saved);
}

}  // namespace terrace::layers
