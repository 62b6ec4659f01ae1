// The forward of a mixture of experts, and its generation.
//
//   forward    router │ counts, rows to their experts' ranks │ chosen experts │ results back │ shared experts │ result
//   decode     router │ experts │ result
#include <utility>

#include <terrace/parallel/layers/mlp/moe.h>

namespace terrace::layers {

void Moe::describe_forward(CallSteps& steps, std::int64_t tokens) const {
  const auto at = rows(tokens);
  const auto rooms = forward_rooms(steps, tokens);
  auto router = router_phase(tokens);
  if (merges()) router.work.push_back({rooms.counted, Access::overwrite});
  if (are_dealt()) router.work.insert(router.work.end(), {{rooms.rows, Access::overwrite}, {rooms.sent, Access::overwrite}});
  steps.compute(std::move(router), [=, this](LayerContext& ctx, const LayerTensors& t) {
    route(ctx, t, routing(tokens), ctx.targets, are_dealt() ? t.work[rooms.sent] : t.saved[kInputs]);
    count(ctx, t, rooms);
  });
  exchange_counts(steps, rooms);
  if (are_dealt()) move_rows(steps, Half::both, tokens, rooms.sent, {kInputs, PhaseTensor::Of::saved}, at.there());
  for (std::uint32_t e = 0; e < chosen_here(); ++e) add_expert(steps, tokens, e, rooms);
  if (are_dealt()) move_rows(steps, Half::both, tokens, rooms.results, {kResults, PhaseTensor::Of::saved}, at.back());
  for (auto e = chosen_here(); e < here(); ++e) add_expert(steps, tokens, e, rooms);
  add_result(steps, tokens);
}

// For one position, few experts have a row. A capacity limits the rows of a micro-batch, so a single position drops none.
void Moe::describe_decode(CallSteps& steps) const {
  auto of_all = routing(1);
  of_all.capacity = 0;
  steps.compute(router_phase(1),
                [=, this](LayerContext& ctx, const LayerTensors& t) { route(ctx, t, of_all, {}, t.saved[kInputs]); });
  for (std::uint32_t e = 0; e < here(); ++e) {
    auto phase = expert_phase(1, e);
    phase.unless_zero = static_cast<std::uint32_t>(RoutingReport::kRows) + e;
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
      if (e == 0) ctx.stream.synchronize();  // waits for the router's report
      run_expert(ctx, t, e, t.saved[kResults]);
    });
  }
  add_result(steps, 1);
}

Phase Moe::router_phase(std::int64_t tokens) const {
  return {.weights = params_of(norm_, router_),
          .x = true,
          .saved = Access::overwrite,
          .scratch_bytes = scratch_of({normed(tokens)}),
          .flops = router_flops(tokens)};
}

// `dispatched`: gets the rows that go to experts.
void Moe::route(LayerContext& ctx, const LayerTensors& t, const Routing& routing, TensorView targets,
                TensorView dispatched) const {
  const auto routed_report = routers_report(ctx);
  ScratchArena arena(ctx.scratch);
  const auto x = arena.take(normed(ctx.shape.tokens()));
  norm_.forward(ctx, t.weights, x, t.x, t.saved[kStatistics]);
  router_.forward(ctx, router_.prepare(ctx, t.weights, {}), t.saved[kLogits], x);
  ctx.math.route(ctx.stream, routing, t.saved[kGates], t.saved[kChosen], t.saved[kRows], t.saved[kLogSums], routed_report,
                 t.saved[kLogits], targets);
  ctx.math.dispatch(ctx.stream, dispatched, x, t.saved[kRows]);
}

// Without expert ranks, the first expert's phase learns how many rows each expert has.
void Moe::add_expert(CallSteps& steps, std::int64_t tokens, std::uint32_t expert, const ForwardRooms& rooms) const {
  const bool learns = expert == 0 && !are_dealt();
  auto phase = expert_phase(tokens, expert);
  if (is_dealt(expert)) phase.work = {{rooms.results, expert == 0 ? Access::overwrite : Access::update}};
  if (learns && merges()) phase.work = {{rooms.counted_by_rank, Access::read}};
  steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) {
    if (learns) learn(ctx, t, rooms);
    run_expert(ctx, t, expert, is_dealt(expert) ? t.work[rooms.results] : t.saved[kResults]);
  });
}

Phase Moe::expert_phase(std::int64_t tokens, std::uint32_t expert) const {
  auto phase = of_expert(tokens, expert, Expert::Calls::forward);
  phase.weights = params_of(experts_[expert]);
  phase.saved = Access::update;
  return phase;
}

void Moe::run_expert(LayerContext& ctx, const LayerTensors& t, std::uint32_t expert, TensorView results) const {
  for (const auto& [first, count, output] : blocks(ctx, expert))
    experts_[expert].forward(ctx, t.weights, row_slice(results, output, count), row_slice(t.saved[kUp], first, count),
                             row_slice(t.saved[kInputs], first, count), ScratchArena(ctx.scratch));
}

void Moe::add_result(CallSteps& steps, std::int64_t tokens) const {
  Phase end{.weights = params_of(result_norm_), .saved = result_norm_ ? Access::update : Access::read};
  if (!sums_result()) {
    end.x = true;
    end.y = Access::overwrite;
  }
  steps.compute(std::move(end), [this](LayerContext& ctx, const LayerTensors& t) {
    const auto combine = [&](const TensorView& to, Accumulate how) {
      ctx.math.combine(ctx.stream, to, t.saved[kResults], t.saved[kRows], t.saved[kGates], how);
    };
    if (!result_norm_) return combine(t.y, begin_residual(ctx, t.y, t.x));
    combine(of_norm(t).result, Accumulate::no);
    if (!sums_result()) result_norm_.forward(ctx, t.weights, t.y, t.x, of_norm(t));
  });
  if (sums_result()) result_norm_.describe_sum(steps, config_.tensor(), tokens, kOfNorm, of_norm);
}

}  // namespace terrace::layers
