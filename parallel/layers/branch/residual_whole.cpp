// A residual branch each of whose products is one phase. The phases are the same on all tensor ranks, although only one of them
// adds the residual: all ranks must have the same program.
//
//   forward    norm, in, middle │ out, residual
//   backward   out's dx, middle's gradient │ in's dx, norm's gradient, residual │ out's dW │ in's dW, norm's gradient
//
// Norms of q and k across ranks, a middle of several phases, and a result that tensor ranks add up before its norm have further
// phases.
#include <algorithm>

#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {

void ResidualBranch::forward_whole(CallSteps& steps, BatchShape shape) const {
  in_whole(steps, shape);
  add_middle(steps, LayerCall::forward, shape);
  out_whole(steps, shape);
}

// The phases up to the middle. Norms across ranks wait for a sum.
void ResidualBranch::in_whole(CallSteps& steps, BatchShape shape) const {
  const auto n = shape.tokens();
  const double in = product_flops(n, in_.outputs()), between = middle_at_once() ? middle_flops(shape) : 0;
  const auto begun = begins_middle(LayerCall::forward);
  if (!norms_across())
    return steps.compute({.weights = params_of(norm_, query_key_norm_, in_, in_adapters_),
                          .x = true,
                          .saved = Access::overwrite,
                          .work = CallSteps::uses({}, begun),
                          .scratch_bytes = std::max(in_bytes(n), query_key_bytes(n)) + in_result_bytes(n),
                          .flops = in + between},
                         [=, this](LayerContext& ctx, const LayerTensors& t) {
                           ScratchArena arena(ctx.scratch);
                           const auto result = in_result(t, n, arena);
                           run_in(ctx, t.weights, result, t.x, t.saved[kStatistics], arena);
                           norm_in_result(ctx, t, result, arena);
                           save_middle(ctx, t, result);
                         });
  const auto sums = add_norm_sums(steps, shape);
  const auto room = lasting(steps, in_result_, in_result_bytes(n));
  Phase product{.weights = params_of(norm_, in_, in_adapters_),
                .x = true,
                .saved = Access::overwrite,
                .work = CallSteps::uses({}, {sums.here}),
                .scratch_bytes = in_bytes(n),
                .flops = in};
  if (in_result_bytes(n) != 0) product.work.push_back({room, Access::overwrite});
  steps.compute(std::move(product), [=, this](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena of_room(t.work[room]);
    const auto result = in_result(t, n, of_room);
    run_in(ctx, t.weights, result, t.x, t.saved[kStatistics], ScratchArena(ctx.scratch));
    take_in_result(ctx, t, result, sums);
  });
  norm_across(steps, shape, sums, room);
}

void ResidualBranch::out_whole(CallSteps& steps, BatchShape shape) const {
  const auto n = shape.tokens();
  const std::uint64_t recomputed = saves_middle() ? 0 : middle_bytes(n);
  Phase product{.weights = params_of(out_, out_adapters_),
                .saved = result_norm_ ? Access::update : Access::read,
                .scratch_bytes = recomputed + out_adapters_.bytes(n),
                .flops = product_flops(n, out_.inputs())};
  if (!adds_up()) {
    product.weights = params_of(out_, result_norm_, out_adapters_);
    product.x = true;
    product.y = Access::overwrite;
  }
  steps.compute(std::move(product), [this](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena arena(ctx.scratch);
    const auto norms = saved_of_norms(t);
    const auto middle_result = middle(ctx, t, arena);
    run_out(ctx, t.weights, t.y, middle_result, t.x, norms.result, arena);
  });
  if (adds_up()) add_result(steps, shape);
}

void ResidualBranch::backward_whole(CallSteps& steps, BatchShape shape) const {
  out_input_whole(steps, shape);
  add_middle(steps, LayerCall::backward, shape);
  in_input_whole(steps, shape);
  weights_whole(steps, shape);
}

void ResidualBranch::out_input_whole(CallSteps& steps, BatchShape shape) const {
  const auto n = shape.tokens();
  const double out = product_flops(n, out_.inputs());
  Phase phase{.half = Half::input,
              .weights = params_of(out_, result_norm_, out_adapters_),
              .dy = true,
              .saved = Access::read,
              .work = CallSteps::uses({}, begins_middle(LayerCall::backward)),
              .scratch_bytes = middle_bytes(n) + out_adapters_.bytes(n),
              .flops = middle_at_once() ? out + 2 * middle_flops(shape) : out};
  if (middle_at_once() || result_norm_) phase.carried = Access::overwrite;
  steps.compute(std::move(phase), [this](LayerContext& ctx, const LayerTensors& t) { out_input(ctx, t); });
}

void ResidualBranch::in_input_whole(CallSteps& steps, BatchShape shape) const {
  const auto n = shape.tokens();
  const auto sums = add_norm_sums(steps, shape);
  norm_grad_across(steps, shape, sums);
  Phase phase{.half = Half::input,
              .weights = params_of(norm_, query_key_norm_, in_, in_adapters_),
              .x = true,
              .dy = true,
              .dx = Access::overwrite,
              .saved = Access::read,
              .carried = Access::update,
              .scratch_bytes = std::max(bytes_of<InInput>(*this, n), query_key_bytes(n)),
              .flops = product_flops(n, in_.outputs())};
  if (norms_across()) phase.work.push_back({sums.all, Access::read});
  steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
    in_input(ctx, t, norms_across() ? t.work[sums.all] : TensorView{});
  });
}

void ResidualBranch::weights_whole(CallSteps& steps, BatchShape shape) const {
  const auto n = shape.tokens();
  const std::uint64_t recomputed = saves_middle() ? 0 : middle_bytes(n);
  Phase out{.half = Half::weight,
            .weights = params_of(out_adapters_),
            .gradients = params_of(out_, result_norm_, out_adapters_),
            .dy = true,
            .saved = Access::read,
            .scratch_bytes = recomputed + out_adapters_.gradient_bytes(n),
            .flops = product_flops(n, out_.inputs())};
  if (result_norm_) out.carried = Access::read;
  steps.compute(std::move(out), [this](LayerContext& ctx, const LayerTensors& t) { out_weight(ctx, t); });
  Phase in{.half = Half::weight,
           .weights = params_of(norm_, in_adapters_),
           .gradients = params_of(norm_, query_key_norm_, in_, in_adapters_),
           .x = true,
           .carried = Access::read,
           .scratch_bytes = bytes_of<InWeight>(*this, n),
           .flops = product_flops(n, in_.outputs())};
  if (query_key_norm_) in.saved = Access::read;
  steps.compute(std::move(in), [this](LayerContext& ctx, const LayerTensors& t) { in_weight(ctx, t); });
}

void ResidualBranch::out_input(LayerContext& ctx, const LayerTensors& t) const {
  ScratchArena arena(ctx.scratch);
  const TensorView gradient = take_middle(arena, ctx.shape.tokens());
  if (result_norm_) result_norm_.input_grad(ctx, t.weights, dresult(t), t.dy, saved_of_norms(t).result, 0);
  out_.input_grad(ctx, out_.prepare(ctx, t.weights, {}), gradient, dresult(t));
  out_adapters_.input_grad(ctx, t.weights, out_adapters_.place(arena, ctx.shape.tokens()), gradient, dresult(t));
  middle_grad(ctx, t, t.carried[kDin], gradient);
}

void ResidualBranch::in_input(LayerContext& ctx, const LayerTensors& t, TensorView sums) const {
  const TensorView din = t.carried[kDin], dnormed = t.carried[kDnormed];
  ScratchArena arena(ctx.scratch);
  norm_in_result_grad(ctx, t, arena, sums);
  const InInput scratch(*this, arena, ctx.shape.tokens());
  in_.input_grad(ctx, in_.prepare(ctx, t.weights, scratch.weights), dnormed, din);
  in_adapters_.input_grad(ctx, t.weights, scratch.adapters, dnormed, din);
  const Accumulate how = begin_residual(ctx, t.dx, t.dy);
  norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], how);
}

void ResidualBranch::out_weight(LayerContext& ctx, const LayerTensors& t) const {
  ScratchArena arena(ctx.scratch);
  const auto middle_result = middle(ctx, t, arena);
  out_.weight_grad(ctx, t.gradients, {}, dresult(t), middle_result, t.accumulate);
  out_adapters_.weight_grad(ctx, t.weights, t.gradients, out_adapters_.place_gradient(arena, ctx.shape.tokens()), dresult(t),
                            middle_result, t.accumulate);
  norm_result_weight_grad(ctx, t);
}

void ResidualBranch::in_weight(LayerContext& ctx, const LayerTensors& t) const {
  ScratchArena arena(ctx.scratch);
  const InWeight scratch(*this, arena, ctx.shape.tokens());
  norm_.forward(ctx, t.weights, scratch.normed, t.x, scratch.statistics);
  in_.weight_grad(ctx, t.gradients, scratch.gradient, t.carried[kDin], scratch.normed, t.accumulate);
  in_adapters_.weight_grad(ctx, t.weights, t.gradients, scratch.adapters, t.carried[kDin], scratch.normed, t.accumulate);
  norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, scratch.statistics, t.accumulate);
  if (query_key_norm_)
    query_key_norm_.weight_grad(ctx, t.gradients, saved_of_norms(t).query_key, carried_of_query_key(t), t.accumulate);
}

}  // namespace terrace::layers
