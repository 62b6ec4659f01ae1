// What the ranks of a mixture of experts exchange. Context ranks merge what their routers counted. Expert ranks tell each other
// how many rows they have for each expert, then move the rows.
#include <terrace/parallel/layers/mlp/moe.h>

namespace terrace::layers {

Moe::ForwardRooms Moe::forward_rooms(CallSteps& steps, std::int64_t tokens) const {
  const auto at = rows(tokens);
  ForwardRooms rooms;
  if (merges()) {
    rooms.counted = steps.room("what this rank's router counted, for each rank", DType::fp64);
    rooms.counted_by_rank = steps.room("what routers counted, by rank", DType::fp64);
  }
  if (are_dealt()) {
    rooms.rows = steps.room("rows for each expert", DType::fp64);
    rooms.rows_by_rank = steps.room("rows for each expert, by rank", DType::fp64);
    rooms.sent = steps.room(whole_rows("own rows of experts", at.most_own()));
    rooms.results = steps.room(whole_rows("experts' results for other ranks", at.most_computed()));
  }
  return rooms;
}

// Counts what other ranks must know of this rank's tokens.
void Moe::count(LayerContext& ctx, const LayerTensors& t, const ForwardRooms& rooms) const {
  const auto r = routing(ctx.shape.tokens());
  const std::int64_t each = 2 * r.experts;
  for (std::int64_t rank = 0; merges() && rank < config_.context().ranks; ++rank)
    ctx.math.convert(ctx.stream, part(t.work[rooms.counted], rank * each, {each}),
                     part(ctx.report, RoutingReport{r}.asked(), {each}));
  if (are_dealt()) ctx.math.convert(ctx.stream, t.work[rooms.rows], part(ctx.report, RoutingReport::kRows, {r.experts}));
}

void Moe::exchange_counts(CallSteps& steps, const ForwardRooms& rooms) const {
  const auto experts = config_.experts.count;
  if (merges()) {
    const std::vector<std::int64_t> counts(config_.context().ranks, 2 * experts);
    steps.exchange(Half::both, {mesh::kContextRanks, rooms.counted, rooms.counted_by_rank, counts, counts});
  }
  if (!are_dealt()) return;
  steps.exchange(Half::both, all_gather(mesh::kExpertRanks, rooms.rows, rooms.rows_by_rank, experts, config_.expert().ranks));
  auto read = std::vector{rooms.rows_by_rank, rooms.sent};
  if (merges()) read.push_back(rooms.counted_by_rank);
  steps.compute({.saved = Access::update, .work = CallSteps::uses(read, {})},
                [=, this](LayerContext& ctx, const LayerTensors& t) { learn(ctx, t, rooms); });
}

// Runs after the router: from here on the host knows how many rows each expert has.
void Moe::learn(LayerContext& ctx, const LayerTensors& t, const ForwardRooms& rooms) const {
  const auto at = rows(ctx.shape.tokens());
  if (merges())
    ctx.math.merge_reports(ctx.stream, routing(ctx.shape.tokens()), routers_report(ctx),
                           CallSteps::view(t, rooms.counted_by_rank, {config_.context().ranks, 2 * config_.experts.count}));
  if (are_dealt()) {
    const auto& counts = t.work[rooms.rows_by_rank];
    ctx.math.convert(ctx.stream, part(ctx.report, at.counts(), counts.shape), counts);
  }
  ctx.stream.synchronize();
  if (!are_dealt()) return;
  at.tell(report(ctx));
  keep_shared(ctx, t.saved[kInputs], t.work[rooms.sent]);
}

void Moe::keep_shared(LayerContext& ctx, TensorView computed, TensorView own) const {
  for (auto e = chosen_here(); e < here(); ++e)
    for (const auto& [first, count, of_own] : blocks(ctx, e))
      ctx.math.convert(ctx.stream, row_slice(computed, first, count), row_slice(own, of_own, count));
}

void Moe::move_rows(CallSteps& steps, Half half, std::int64_t tokens, PhaseTensor from, PhaseTensor to,
                    PhaseExchange::Told told) const {
  const std::vector usual(config_.expert().ranks, rows(tokens).usual_between() * config_.hidden);
  steps.exchange(half, {.members = mesh::kExpertRanks, .from = from, .to = to, .sent = usual, .received = usual, .told = told});
}

}  // namespace terrace::layers
