// A residual branch whose exchanges run at the same time as its products, piece by piece (row_pieces.h). Its norms, residuals
// and their gradients are computed for this rank's share of the rows, and its middle for all rows, as without pieces. A norm of
// the result needs complete sums, so a branch with such a norm works in this way even with one piece.
//
//   forward    norm │ gather 0 │ gather 1 │ in 0 │ gather 2 │ in 1 │ … │ middle │ out 0 │ add 0 │ out 1 │ add 1 │ …
//              │ norm of the result, residual
//   backward   cut dy, or the result's gradient │ gathers beside out's dx │ middle's gradient │ norm again │ in's dx 0 │ add 0
//              │ … │ gathers of x │ out's dW │ norm's gradient, residual │ in's dW
//
// Two exchanges of a forward and one of a backward overlap with no product: the first gathers and the last sum.
#include <algorithm>
#include <optional>

#include <terrace/parallel/layers/branch/residual_branch.h>
#include <terrace/parallel/layers/parts/row_pieces.h>

namespace terrace::layers {
namespace {

const std::vector<std::uint32_t> kNone;

// Keeps the rooms that an exchange reads during this product. If their use ended before, a tensor of the product could get
// their memory, and the product would wait for the exchange.
void keep(Phase& phase, const std::vector<std::uint32_t>& rooms) {
  for (const auto room : rooms) phase.work.push_back({room, Access::read});
}
void keep_last(Phase& phase, const RowPieces& rows, std::uint32_t piece) {
  if (piece > 0) keep(phase, {rows.all(piece - 1)});
}

Access of_piece(std::uint32_t piece) { return piece == 0 ? Access::overwrite : Access::update; }

}  // namespace

RowPieces ResidualBranch::pieces(CallSteps& steps, const std::string& name, BatchShape shape, bool in_turn) const {
  return {steps, name, config_.dtype, config_.tensor(), rows_of(shape), config_.hidden, in_turn};
}

void ResidualBranch::forward_in_pieces(CallSteps& steps, BatchShape shape) const {
  const auto rows = pieces(steps, "rows of norm's result, or of the branch's", shape, true);
  steps.compute({.weights = params_of(norm_),
                 .x = true,
                 .saved = Access::overwrite,
                 .work = CallSteps::uses({}, rows.own_rooms()),
                 .scratch_bytes = 0},
                [=, this](LayerContext& ctx, const LayerTensors& t) { cut_norm(ctx, t, rows, t.saved[kStatistics]); });
  in_in_pieces(steps, shape, rows);
  add_middle(steps, LayerCall::forward, shape);
  out_in_pieces(steps, shape, rows);
  Phase end{.weights = params_of(result_norm_),
            .x = true,
            .y = Access::overwrite,
            .work = CallSteps::uses(rows.own_rooms(), {}),
            .scratch_bytes = 0};
  if (result_norm_) end.saved = Access::update;
  steps.compute(std::move(end), [=, this](LayerContext& ctx, const LayerTensors& t) {
    const auto take = [&](const TensorView& to, Accumulate how) {
      rows.each_own(t, to, [&](const TensorView& sum, const TensorView& at) { ctx.math.convert(ctx.stream, at, sum, how); });
    };
    if (const auto norms = saved_of_norms(t); result_norm_) {
      take(norms.result.result, Accumulate::no);
      return result_norm_.forward(ctx, t.weights, t.y, t.x, norms.result);
    }
    ctx.math.convert(ctx.stream, t.y, t.x);
    take(t.y, Accumulate::yes);
  });
}

void ResidualBranch::in_in_pieces(CallSteps& steps, BatchShape shape, const RowPieces& rows) const {
  const auto n = shape.tokens();
  const bool has_room = in_result_bytes(n) != 0;  // the product does not write it where it is saved
  const auto room = lasting(steps, in_result_, in_result_bytes(n));
  const auto sums = add_norm_sums(steps, shape);
  const double between = middle_at_once() ? middle_flops(shape) : 0;
  rows.gather(steps, Half::both, 0);
  for (std::uint32_t i = 0; i < rows.count(); ++i) {
    const bool last = i + 1 == rows.count(), ends = last && !norms_across(), takes = last && norms_across();
    if (!last) rows.gather(steps, Half::both, i + 1);
    Phase phase{.weights = ends ? params_of(query_key_norm_, in_, in_adapters_) : params_of(in_, in_adapters_),
                .saved = Access::update,
                .work = CallSteps::uses({rows.all(i)}, ends ? begins_middle(LayerCall::forward) : kNone),
                .scratch_bytes = std::max(bytes_of<InInput>(*this, n), ends ? query_key_bytes(n) : 0),
                .flops = product_flops(n, in_.outputs()) * rows.fraction(i) + (ends ? between : 0)};
    if (has_room) phase.work.push_back({room, of_piece(i)});
    if (takes) phase.work.push_back({sums.here, Access::overwrite});
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch), of_room(t.work[room]);
      const InInput scratch(*this, arena, n);
      const auto weights = in_.prepare(ctx, t.weights, scratch.weights);
      const auto result = in_result(t, n, of_room);
      rows.each_rank(t, i, [&](const TensorView& x, std::int64_t at) {
        const auto y = row_slice(result, at, x.shape[0]);
        in_.forward(ctx, weights, y, x);
        in_adapters_.forward(ctx, t.weights, scratch.adapters, y, x);
      });
      if (takes) take_in_result(ctx, t, result, sums);
      if (!ends) return;
      norm_in_result(ctx, t, result, ScratchArena(ctx.scratch));
      save_middle(ctx, t, result);
    });
  }
  if (norms_across()) norm_across(steps, shape, sums, room);
}

void ResidualBranch::out_in_pieces(CallSteps& steps, BatchShape shape, const RowPieces& rows) const {
  const auto n = shape.tokens();
  const bool again = !saves_middle();  // the first piece computes the middle
  const auto room = lasting(steps, "input of the second product", again ? middle_bytes(n) : 0);
  for (std::uint32_t i = 0; i < rows.count(); ++i) {
    Phase phase{.weights = params_of(out_, out_adapters_),
                .saved = Access::read,
                .work = CallSteps::uses({}, {rows.all(i)}),
                .scratch_bytes = out_adapters_.bytes(n),
                .flops = product_flops(n, out_.inputs()) * rows.fraction(i)};
    if (again) phase.work.push_back({room, i == 0 ? Access::overwrite : Access::read});
    keep_last(phase, rows, i);
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch), of_room(t.work[room]);
      const auto whole = again && i > 0 ? take_middle(of_room, n) : middle(ctx, t, of_room);
      const auto weights = out_.prepare(ctx, t.weights, {});
      const auto adapters = out_adapters_.place(arena, n);
      rows.each_rank(t, i, [&](const TensorView& y, std::int64_t at) {
        const auto x = row_slice(whole, at, y.shape[0]);
        out_.forward(ctx, weights, y, x);
        out_adapters_.forward(ctx, t.weights, adapters, y, x);
      });
    });
    rows.scatter(steps, Half::both, i);
  }
}

void ResidualBranch::cut_norm(LayerContext& ctx, const LayerTensors& t, const RowPieces& rows,
                              const NormStatistics& statistics) const {
  std::int64_t begin = 0;
  rows.each_own(t, t.x, [&](const TensorView& normed, const TensorView& x) {
    norm_.forward(ctx, t.weights, normed, x, statistics.rows(begin, x.shape[0]));
    begin += x.shape[0];
  });
}

// Exchanges dy, or the gradient of the result's norm; the weight half needs all rows of it.
void ResidualBranch::out_input_in_pieces(CallSteps& steps, BatchShape shape, const RowPieces& rows) const {
  constexpr auto half = Half::input;
  const auto n = shape.tokens();
  const auto dmiddle = steps.room("gradient of the second product's input", config_.dtype);
  steps.reserve(dmiddle, n * out_.inputs());
  const auto last = rows.count() - 1;
  const double out = product_flops(n, out_.inputs());
  const double between = middle_at_once() ? 2 * middle_flops(shape) : 0;

  Phase cut{.half = half,
            .weights = params_of(result_norm_),
            .dy = true,
            .work = CallSteps::uses({}, rows.own_rooms()),
            .scratch_bytes = 0};
  if (result_norm_) cut.saved = Access::read;
  steps.compute(std::move(cut), [=, this](LayerContext& ctx, const LayerTensors& t) {
    std::int64_t first = 0;
    rows.each_own(t, t.dy, [&](const TensorView& own, const TensorView& dy) {
      result_norm_ ? result_norm_.input_grad(ctx, t.weights, own, t.dy, saved_of_norms(t).result, first)
                   : ctx.math.convert(ctx.stream, own, dy);
      first += own.shape[0];
    });
  });
  rows.gather(steps, half, 0);
  for (std::uint32_t i = 0; i <= last; ++i) {
    if (i < last) rows.gather(steps, half, i + 1);
    Phase phase{.half = half,
                .weights = params_of(out_, out_adapters_),
                .carried = of_piece(i),
                .work = CallSteps::uses({rows.all(i)}, i == last ? begins_middle(LayerCall::backward) : kNone),
                .scratch_bytes = out_adapters_.bytes(n),
                .flops = out * rows.fraction(i) + (i == last ? between : 0)};
    if (i == last) phase.saved = Access::read;
    phase.work.push_back({dmiddle, of_piece(i)});
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto whole = CallSteps::view(t, dmiddle, {n, out_.inputs()});
      const auto weights = out_.prepare(ctx, t.weights, {});
      ScratchArena arena(ctx.scratch);
      const auto adapters = out_adapters_.place(arena, n);
      rows.each_rank(t, i, [&](const TensorView& dy, std::int64_t at) {
        const auto dx = row_slice(whole, at, dy.shape[0]);
        out_.input_grad(ctx, weights, dx, dy);
        out_adapters_.input_grad(ctx, t.weights, adapters, dx, dy);
        ctx.math.convert(ctx.stream, row_slice(t.carried[kDout], at, dy.shape[0]), dy);
      });
      if (i == last) middle_grad(ctx, t, t.carried[kDin], whole);
    });
  }
}

void ResidualBranch::in_input_in_pieces(CallSteps& steps, BatchShape shape, const RowPieces& rows) const {
  const auto n = shape.tokens();
  const auto sums = add_norm_sums(steps, shape);
  norm_grad_across(steps, shape, sums);
  for (std::uint32_t i = 0; i < rows.count(); ++i) {
    const bool norms = i == 0 && query_key_norm_;
    Phase phase{.half = Half::input,
                .weights = norms ? params_of(query_key_norm_, in_, in_adapters_) : params_of(in_, in_adapters_),
                .saved = norms ? std::optional(Access::read) : std::nullopt,
                .carried = norms ? Access::update : Access::read,
                .work = CallSteps::uses({}, {rows.all(i)}),
                .scratch_bytes = std::max(bytes_of<InInput>(*this, n), norms ? query_key_bytes(n) : 0),
                .flops = product_flops(n, in_.outputs()) * rows.fraction(i)};
    keep_last(phase, rows, i);
    if (norms && norms_across()) phase.work.push_back({sums.all, Access::read});
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      ScratchArena arena(ctx.scratch);
      if (norms) norm_in_result_grad(ctx, t, arena, norms_across() ? t.work[sums.all] : TensorView{});
      const InInput scratch(*this, arena, n);
      const auto weights = in_.prepare(ctx, t.weights, scratch.weights);
      rows.each_rank(t, i, [&](const TensorView& dnormed, std::int64_t at) {
        const auto din = row_slice(t.carried[kDin], at, dnormed.shape[0]);
        in_.input_grad(ctx, weights, dnormed, din);
        in_adapters_.input_grad(ctx, t.weights, scratch.adapters, dnormed, din);
      });
    });
    rows.scatter(steps, Half::input, i);
  }
}

void ResidualBranch::backward_in_pieces(CallSteps& steps, BatchShape shape) const {
  const auto rows = pieces(steps, "gradient of the result or of norm's", shape, true),
             x_rows = pieces(steps, "norm's result", shape, false);
  out_input_in_pieces(steps, shape, rows);
  add_middle(steps, LayerCall::backward, shape);
  cut_norm_again(steps, shape, x_rows);
  in_input_in_pieces(steps, shape, rows);
  for (std::uint32_t i = 0; i < x_rows.count(); ++i) x_rows.gather(steps, Half::weight, i);
  out_weight_beside(steps, shape, x_rows);
  residual_grad(steps, rows);
  in_weight_of_pieces(steps, shape, x_rows);
}

void ResidualBranch::cut_norm_again(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const {
  const auto own = norm_.statistics(rows_of(shape));
  steps.compute({.half = Half::weight,
                 .weights = params_of(norm_),
                 .x = true,
                 .work = CallSteps::uses({}, x_rows.own_rooms()),
                 .scratch_bytes = own.bytes()},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  cut_norm(ctx, t, x_rows, part({ctx.scratch.data, own.dtype, own.shape}, 0, own.shape));
                });
}

void ResidualBranch::out_weight_beside(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const {
  const auto n = shape.tokens();
  Phase out_weight{.half = Half::weight,
                   .weights = params_of(out_adapters_),
                   .gradients = params_of(out_, result_norm_, out_adapters_),
                   .dy = bool{result_norm_},
                   .saved = Access::read,
                   .carried = Access::read,
                   .scratch_bytes = (saves_middle() ? 0 : middle_bytes(n)) + out_adapters_.gradient_bytes(n),
                   .flops = product_flops(n, out_.inputs())};
  keep(out_weight, x_rows.own_rooms());
  steps.compute(std::move(out_weight), [this, n](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena arena(ctx.scratch);
    const auto x = middle(ctx, t, arena);
    out_.weight_grad(ctx, t.gradients, {}, t.carried[kDout], x, t.accumulate);
    out_adapters_.weight_grad(ctx, t.weights, t.gradients, out_adapters_.place_gradient(arena, n), t.carried[kDout], x,
                              t.accumulate);
    norm_result_weight_grad(ctx, t);
  });
}

void ResidualBranch::residual_grad(CallSteps& steps, const RowPieces& rows) const {
  Phase residual{.half = Half::input,
                 .weights = params_of(norm_),
                 .x = true,
                 .dy = true,
                 .dx = Access::overwrite,
                 .saved = Access::read,
                 .carried = Access::update,
                 .work = CallSteps::uses(rows.own_rooms(), {}),
                 .scratch_bytes = 0};
  keep_last(residual, rows, rows.count());  // the last sum may read this room until the product before this phase has begun
  steps.compute(std::move(residual), [=, this](LayerContext& ctx, const LayerTensors& t) {
    const auto dnormed = t.carried[kDnormed];
    rows.each_own(t, dnormed, [&](const TensorView& sum, const TensorView& to) { ctx.math.convert(ctx.stream, to, sum); });
    ctx.math.convert(ctx.stream, t.dx, t.dy);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], Accumulate::yes);
  });
}

void ResidualBranch::in_weight_of_pieces(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const {
  const auto n = shape.tokens();
  steps.compute(
      {.half = Half::weight,
       .weights = params_of(in_adapters_),
       .gradients = params_of(norm_, query_key_norm_, in_, in_adapters_),
       .x = true,
       .saved = Access::read,
       .carried = Access::read,
       .work = CallSteps::uses(x_rows.all_rooms(), {}),
       .scratch_bytes = bytes_of<InWeight>(*this, n),
       .flops = product_flops(n, in_.outputs())},
      [=, this](LayerContext& ctx, const LayerTensors& t) {
        ScratchArena arena(ctx.scratch);
        const InWeight scratch(*this, arena, n);
        for (std::uint32_t i = 0; i < x_rows.count(); ++i)
          x_rows.each_rank(t, i, [&](const TensorView& x, std::int64_t at) {
            ctx.math.convert(ctx.stream, row_slice(scratch.normed, at, x.shape[0]), x);
          });
        in_.weight_grad(ctx, t.gradients, scratch.gradient, t.carried[kDin], scratch.normed, t.accumulate);
        in_adapters_.weight_grad(ctx, t.weights, t.gradients, scratch.adapters, t.carried[kDin], scratch.normed, t.accumulate);
        norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, t.saved[kStatistics], t.accumulate);
        if (query_key_norm_)
          query_key_norm_.weight_grad(ctx, t.gradients, saved_of_norms(t).query_key, carried_of_query_key(t), t.accumulate);
      });
}

}  // namespace terrace::layers
