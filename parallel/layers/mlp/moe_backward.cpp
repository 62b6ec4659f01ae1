// The backward of a mixture of experts.
//
//   input      gates, router's logits │ rows to their experts' ranks │ chosen experts │ back │ shared experts │ router, norm
//   weight     experts │ router, norm
#include <utility>

#include <terrace/parallel/layers/mlp/moe.h>

namespace terrace::layers {

// Without expert ranks, the experts write the gradients of their inputs where the router reads them.
void Moe::describe_input_half(CallSteps& steps, std::int64_t tokens) const {
  const auto at = rows(tokens);
  const auto computed = steps.room(whole_rows("gradient of experts' inputs", at.most_computed()));
  auto sent = computed, own = computed;
  if (are_dealt()) {
    sent = steps.room(whole_rows("own rows of experts", at.most_own()));
    own = steps.room(whole_rows("own rows of experts", at.most_own()));
  }
  steps.compute({.half = Half::input,
                 .weights = params_of(result_norm_),
                 .dy = true,
                 .saved = Access::read,
                 .carried = Access::overwrite,
                 .work = CallSteps::uses({}, are_dealt() ? std::vector{sent} : std::vector<std::uint32_t>{}),
                 .scratch_bytes = scratch_of({dgates(tokens)})},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  begin_input_half(ctx, t, are_dealt() ? t.work[sent] : t.carried[kDresults]);
                });
  if (are_dealt()) move_rows(steps, Half::input, tokens, sent, {kDresults, PhaseTensor::Of::carried}, at.there());
  for (std::uint32_t e = 0; e < chosen_here(); ++e) add_expert_input(steps, tokens, e, computed);
  if (are_dealt()) move_rows(steps, Half::input, tokens, computed, own, at.back());
  for (auto e = chosen_here(); e < here(); ++e) add_expert_input(steps, tokens, e, own);
  add_input_result(steps, tokens, own);
}

// The gradients of gates and of the router's logits; `dispatched` gets those of the experts' results.
void Moe::begin_input_half(LayerContext& ctx, const LayerTensors& t, TensorView dispatched) const {
  const auto& saved = t.saved;
  const auto n = ctx.shape.tokens();
  const auto dy = dresult(t);
  if (result_norm_) result_norm_.input_grad(ctx, t.weights, dy, t.dy, of_norm(t), 0);
  ScratchArena arena(ctx.scratch);
  const auto gradient = arena.take(dgates(n));
  // A micro-batch's router losses are weighted by its share of the global batch's tokens, both without padding. The balance is
  // that of all context ranks together.
  const auto r = routing(n);
  const auto* const numbers = report(ctx);
  const double tokens = numbers[RoutingReport::kTokens],
               of_ranks = RoutingReport{r}.choices(numbers) / static_cast<double>(r.chosen);
  const double weight = config_.tensor().leads() ? ctx.token_scale * tokens : 0;
  const double of_all = tokens == 0 ? 0 : weight * (of_ranks / tokens);
  ctx.math.gate_grad(ctx.stream, gradient, dy, saved[kResults], saved[kRows]);
  ctx.math.route_grad(ctx.stream, r, t.carried[kDlogits], gradient, saved[kLogits], saved[kChosen], saved[kLogSums],
                      routers_report(ctx), of_all * config_.experts.balance_loss, weight * config_.experts.square_loss);
  ctx.math.dispatch(ctx.stream, dispatched, dy, saved[kRows], saved[kGates]);
  if (are_dealt()) keep_shared(ctx, t.carried[kDresults], dispatched);
}

// `dinputs`: the room with the gradient of its inputs.
void Moe::add_expert_input(CallSteps& steps, std::int64_t tokens, std::uint32_t expert, std::uint32_t dinputs) const {
  auto phase = of_expert(tokens, expert, Expert::Calls::input_grad);
  phase.half = Half::input;
  phase.weights = params_of(experts_[expert]);
  phase.saved = Access::read;
  phase.carried = Access::update;
  phase.work = {{dinputs, expert == 0 ? Access::overwrite : Access::update}};
  steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
    for (const auto& [first, count, output] : blocks(ctx, expert))
      experts_[expert].input_grad(ctx, t.weights, row_slice(t.work[dinputs], output, count),
                                  row_slice(t.carried[kDup], first, count), row_slice(t.carried[kDresults], first, count),
                                  row_slice(t.saved[kUp], first, count), ScratchArena(ctx.scratch));
  });
}

void Moe::add_input_result(CallSteps& steps, std::int64_t tokens, std::uint32_t dinputs) const {
  steps.compute({.half = Half::input,
                 .weights = params_of(norm_, router_),
                 .x = true,
                 .dy = true,
                 .dx = Access::overwrite,
                 .saved = Access::read,
                 .carried = Access::update,
                 .work = CallSteps::uses({dinputs}, {}),
                 .flops = router_flops(tokens)},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  const TensorView dnormed = t.carried[kDnormed];
                  ctx.math.combine(ctx.stream, dnormed, t.work[dinputs], t.saved[kRows]);
                  router_.input_grad(ctx, router_.prepare(ctx, t.weights, {}), dnormed, t.carried[kDlogits], Accumulate::yes);
                  const Accumulate how = begin_residual(ctx, t.dx, t.dy);
                  norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], how);
                });
}

void Moe::describe_weight_half(CallSteps& steps, std::int64_t tokens) const {
  for (std::uint32_t e = 0; e < here(); ++e) {
    auto phase = of_expert(tokens, e, Expert::Calls::weight_grad);
    phase.half = Half::weight;
    experts_[e].name_adapters(phase.weights);
    phase.gradients = params_of(experts_[e]);
    phase.saved = phase.carried = Access::read;
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      const auto all = blocks(ctx, e);
      auto how = t.accumulate;
      for (const auto& [first, count, output] : all) {
        const auto of = [first = first, count = count](const TensorView& rows) { return row_slice(rows, first, count); };
        experts_[e].weight_grad(ctx, t.weights, t.gradients, of(t.carried[kDup]), of(t.carried[kDresults]), of(t.saved[kUp]),
                                of(t.saved[kInputs]), ScratchArena(ctx.scratch), how);
        how = Accumulate::yes;
      }
      if (all.empty()) experts_[e].no_weight_grad(ctx, t.gradients, t.accumulate);
    });
  }
  Phase router{.half = Half::weight,
               .weights = params_of(norm_),
               .gradients = params_of(norm_, router_, result_norm_),
               .x = true,
               .dy = bool{result_norm_},
               .carried = Access::read,
               .scratch_bytes = scratch_of({normed(tokens), norm_.statistics(tokens)}),
               .flops = router_flops(tokens)};
  if (result_norm_) router.saved = Access::read;
  steps.compute(std::move(router), [=, this](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena arena(ctx.scratch);
    const auto x = arena.take(normed(tokens)), statistics = arena.take(norm_.statistics(tokens));
    norm_.forward(ctx, t.weights, x, t.x, statistics);
    router_.weight_grad(ctx, t.gradients, {}, t.carried[kDlogits], x, t.accumulate);
    norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, statistics, t.accumulate);
    if (result_norm_) result_norm_.weight_grad(ctx, t.gradients, t.dy, of_norm(t), t.accumulate, config_.tensor().leads());
  });
}

}  // namespace terrace::layers
