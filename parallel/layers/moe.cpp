#include <terrace/parallel/layers/moe.h>

#include <algorithm>
#include <string>

namespace terrace::layers {
namespace {

Transformer without_ranks(Transformer config) {
  config.tensor = {};
  return config;
}

}  // namespace

Moe::Moe(const Transformer& config, std::int64_t block)
    : TransformerLayer("layers." + std::to_string(block) + ".experts", config),
      norm_(params_, config.names.in_block(block, config.names.mlp_norm), config),
      router_(params_, config.names.in_block(block, ""), {{config.names.router}}, {config.experts.count}, config.hidden, {},
              config.init_std, without_ranks(config)) {
  for (std::int64_t e = 0; e < config.experts.count + config.experts.shared; ++e) {
    const bool is_shared = e >= config.experts.count;
    const auto number = std::to_string(is_shared ? e - config.experts.count : e);
    const auto prefix = (is_shared ? config.names.shared_experts : config.names.experts) + number + ".";
    experts_.emplace_back(params_, config.names.in_block(block, prefix), config_, static_cast<std::uint32_t>(e + 1));
  }
}

Routing Moe::routing(std::int64_t tokens) const { return config_.experts.routing(tokens); }

std::int64_t Moe::report_size() const { return RoutingReport{routing(1)}.size(); }

std::int64_t Moe::most_rows_of(std::int64_t tokens, std::uint32_t expert) const {
  const auto r = routing(tokens);
  return expert < r.experts && r.capacity != 0 ? std::min(r.capacity, tokens) : tokens;
}

std::int64_t Moe::most_rows(std::int64_t tokens) const {
  const auto r = routing(tokens);
  return std::min(r.chosen * tokens, r.experts * most_rows_of(tokens, 0)) + r.shared * tokens;
}

double Moe::usual_rows_of(std::int64_t tokens, std::uint32_t expert) const {
  const auto r = routing(tokens);
  const auto n = static_cast<double>(tokens);
  return expert < r.experts ? n * static_cast<double>(r.chosen) / static_cast<double>(r.experts) : n;
}

// In the order of Saved.
std::vector<TensorSpec> Moe::routed(std::int64_t tokens) const {
  const auto r = routing(tokens);
  const auto sums = accumulator_of(config_.dtype);
  const auto rows = most_rows(tokens);
  return {norm_.statistics(tokens),
          {"router's logits", config_.dtype, {tokens, r.experts}},
          {"log-sum-exp of the router's logits", sums, {tokens}},
          {"gates", sums, {tokens, r.slots()}},
          {"chosen experts", DType::i32, {tokens, r.chosen}},
          {"rows of experts", DType::i32, {tokens, r.slots()}},
          {"experts' inputs", config_.dtype, {rows, config_.hidden}},
          {"experts' activations' inputs", config_.dtype, {rows, experts_.front().up_width()}},
          {"experts' results", config_.dtype, {rows, config_.hidden}}};
}

std::vector<TensorSpec> Moe::saved(BatchShape shape) const { return routed(shape.tokens()); }

std::vector<TensorSpec> Moe::carried(BatchShape shape) const {
  const auto n = shape.tokens(), rows = most_rows(n);
  return {{"gradient of experts' results", config_.dtype, {rows, config_.hidden}},
          {"gradient of experts' activations' inputs", config_.dtype, {rows, experts_.front().up_width()}},
          {"gradient of the router's logits", config_.dtype, {n, config_.experts.count}},
          {"gradient of norm's result", config_.dtype, {n, config_.hidden}}};
}

std::vector<TensorSpec> Moe::work(LayerCall call, BatchShape shape) const {
  if (call == LayerCall::forward && merges()) {
    const Shape counts{config_.context.ranks, 2 * config_.experts.count};
    return {{"what this rank's router counted, for each rank", DType::fp64, counts},
            {"what routers counted, by rank", DType::fp64, counts}};
  }
  if (call != LayerCall::backward) return {};
  return {{"gradient of experts' inputs", config_.dtype, {most_rows(shape.tokens()), config_.hidden}}};
}

// The rows of one position are few: what experts compute of it lies beside what the router tells.
std::vector<TensorSpec> Moe::cache(std::int64_t) const { return routed(1); }

Moe::Route::Route(const Moe& layer, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(layer.config_.dtype, {rows, layer.config_.hidden})) {}

Moe::Gates::Gates(const Moe& layer, ScratchArena& arena, std::int64_t rows)
    : dgates(arena.take(accumulator_of(layer.config_.dtype), {rows, layer.routing(rows).slots()})) {}

Moe::RouterWeight::RouterWeight(const Moe& layer, ScratchArena& arena, std::int64_t rows)
    : normed(arena.take(layer.config_.dtype, {rows, layer.config_.hidden})) {
  const auto spec = layer.norm_.statistics(rows);
  statistics = arena.take(spec.dtype, spec.shape);
}

std::uint64_t Moe::scratch_bytes(BatchShape shape) const {
  const auto n = shape.tokens();
  const auto of_expert = experts_.front().scratch_bytes(n);  // a shared expert, or one without a capacity, has all tokens
  return std::max({bytes_of<Route>(*this, n), bytes_of<Gates>(*this, n), bytes_of<RouterWeight>(*this, n), of_expert});
}

double Moe::forward_flops(BatchShape shape) const {
  double flops = 2 * static_cast<double>(shape.tokens() * config_.hidden * config_.experts.count);
  for (std::uint32_t e = 0; e < experts(); ++e) flops += experts_[e].flops(usual_rows_of(shape.tokens(), e));
  return flops;
}

std::vector<Phase> Moe::phases(LayerCall call, BatchShape shape) const {
  switch (call) {
    case LayerCall::forward: return forward_phases(call, shape.tokens());
    case LayerCall::decode: return decode_phases();
    case LayerCall::backward: return backward_phases(shape.tokens());
    default: return {};
  }
}

// The router, each expert, the way back.
std::vector<Phase> Moe::forward_phases(LayerCall call, std::int64_t tokens) const {
  const double router = 2 * static_cast<double>(tokens * config_.hidden * config_.experts.count);
  std::vector<Phase> all{{.weights = params_of(norm_, router_),
                          .x = true,
                          .saved = Access::overwrite,
                          .scratch_bytes = bytes_of<Route>(*this, tokens),
                          .flops = router}};
  const bool exchanges = first_expert(call) > kMerged;
  if (exchanges) {
    all.front().work = {{kCounted, Access::overwrite}};
    const std::vector<std::int64_t> counts(config_.context.ranks, 2 * config_.experts.count);
    all.push_back({.scratch_bytes = 0, .exchange = PhaseExchange{kContextRanks, kCounted, kCountedByRank, counts, counts}});
  }
  for (std::uint32_t e = 0; e < experts(); ++e)
    all.push_back({.weights = params_of(experts_[e]),
                   .saved = Access::update,
                   .scratch_bytes = experts_[e].scratch_bytes(most_rows_of(tokens, e)),
                   .flops = experts_[e].flops(usual_rows_of(tokens, e))});
  if (exchanges) all[first_expert(call)].work = {{kCountedByRank, Access::read}};
  all.push_back({.x = true, .y = Access::overwrite, .saved = Access::read, .scratch_bytes = 0});
  return all;
}

// Of one position few experts have a row.
std::vector<Phase> Moe::decode_phases() const {
  auto all = forward_phases(LayerCall::decode, 1);
  for (std::uint32_t e = 0; e < experts(); ++e)
    all[first_expert(LayerCall::decode) + e].unless_zero = static_cast<std::uint32_t>(RoutingReport::kRows) + e;
  return all;
}

// The gates, each expert and the router in the input half; each expert and the router in the weight half.
std::vector<Phase> Moe::backward_phases(std::int64_t tokens) const {
  const double router = 2 * static_cast<double>(tokens * config_.hidden * config_.experts.count);
  std::vector<Phase> all{{.half = Half::input,
                          .dy = true,
                          .saved = Access::read,
                          .carried = Access::overwrite,
                          .scratch_bytes = bytes_of<Gates>(*this, tokens)}};
  for (std::uint32_t e = 0; e < experts(); ++e)
    all.push_back({.half = Half::input,
                   .weights = params_of(experts_[e]),
                   .saved = Access::read,
                   .carried = Access::update,
                   .work = {{0, e == 0 ? Access::overwrite : Access::update}},
                   .scratch_bytes = experts_[e].scratch_bytes(most_rows_of(tokens, e)),
                   .flops = experts_[e].flops(usual_rows_of(tokens, e))});
  all.push_back({.half = Half::input,
                 .weights = params_of(norm_, router_),
                 .x = true,
                 .dy = true,
                 .dx = Access::overwrite,
                 .saved = Access::read,
                 .carried = Access::update,
                 .work = {{0, Access::read}},
                 .scratch_bytes = 0,
                 .flops = router});
  for (std::uint32_t e = 0; e < experts(); ++e)
    all.push_back({.half = Half::weight,
                   .gradients = params_of(experts_[e]),
                   .saved = Access::read,
                   .carried = Access::read,
                   .scratch_bytes = experts_[e].scratch_bytes(most_rows_of(tokens, e)),
                   .flops = experts_[e].flops(usual_rows_of(tokens, e))});
  all.push_back({.half = Half::weight,
                 .weights = params_of(norm_),
                 .gradients = params_of(norm_, router_),
                 .x = true,
                 .carried = Access::read,
                 .scratch_bytes = bytes_of<RouterWeight>(*this, tokens),
                 .flops = router});
  return all;
}

// As reported by the router of this call, or of the forward before this backward.
Block Moe::rows_of_expert(const LayerContext& ctx, std::uint32_t expert) const {
  const auto* const rows = ctx.report.as<double>() + RoutingReport::kRows;
  Block block;
  for (std::uint32_t e = 0; e < expert; ++e) block.begin += static_cast<std::int64_t>(rows[e]);
  block.count = static_cast<std::int64_t>(rows[expert]);
  return block;
}

void Moe::route(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, std::span<const TensorView> saved,
                const Routing& routing) const {
  ScratchArena arena(ctx.scratch);
  const Route scratch(*this, arena, ctx.shape.tokens());
  norm_.forward(ctx, weights, scratch.normed, x, saved[kStatistics]);
  router_.forward(ctx, router_.prepare(ctx, weights, {}), saved[kLogits], scratch.normed);
  ctx.math.route(ctx.stream, routing, saved[kGates], saved[kChosen], saved[kRows], saved[kLogSums], ctx.report, saved[kLogits]);
  ctx.math.dispatch(ctx.stream, saved[kInputs], scratch.normed, saved[kRows]);
}

// Around the exchange of what context ranks counted.
void Moe::run_first(LayerContext& ctx, const LayerTensors& t) const {
  const auto r = routing(ctx.shape.tokens());
  if (ctx.runs(kRoute)) {
    route(ctx, t.weights, t.x, t.saved, r);
    const std::int64_t each = 2 * r.experts;
    for (std::int64_t rank = 0; merges() && rank < config_.context.ranks; ++rank)
      ctx.math.convert(ctx.stream, part(t.work[kCounted], rank * each, {each}),
                       part(ctx.report, RoutingReport{r}.asked(), {each}));
  }
  if (merges() && ctx.runs(first_expert(LayerCall::forward)))
    ctx.math.merge_reports(ctx.stream, r, ctx.report, t.work[kCountedByRank]);
}

void Moe::run_experts(LayerContext& ctx, std::span<const TensorView> weights, std::span<const TensorView> saved,
                      std::uint32_t first_phase) const {
  for (std::uint32_t e = 0; e < experts(); ++e) {
    if (!ctx.runs(first_phase + e)) continue;
    if (e == 0) ctx.stream.synchronize();  // the router's report
    const auto [first, count] = rows_of_expert(ctx, e);
    if (count == 0) continue;
    experts_[e].forward(ctx, weights, row_slice(saved[kResults], first, count), row_slice(saved[kUp], first, count),
                        row_slice(saved[kInputs], first, count), ScratchArena(ctx.scratch));
  }
}

void Moe::bring_back(LayerContext& ctx, TensorView y, TensorView x, std::span<const TensorView> saved) const {
  const Accumulate how = begin_residual(ctx, y, x);
  ctx.math.combine(ctx.stream, y, saved[kResults], saved[kRows], saved[kGates], how);
}

void Moe::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {});
  check("report", ctx.report, DType::fp64, {report_size()});
  const auto first = first_expert(LayerCall::forward);
  run_first(ctx, t);
  run_experts(ctx, t.weights, t.saved, first);
  if (ctx.runs(first + experts())) bring_back(ctx, t.y, t.x, t.saved);
}

void Moe::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {});
  check("report", ctx.report, DType::fp64, {report_size()});
  if (has(half, Half::input)) input_half(ctx, t);
  if (has(half, Half::weight)) weight_half(ctx, t);
}

void Moe::input_half(LayerContext& ctx, const LayerTensors& t) const {
  const auto& saved = t.saved;
  const auto n = ctx.shape.tokens();
  if (ctx.runs(kRoute)) {
    ScratchArena arena(ctx.scratch);
    const Gates scratch(*this, arena, n);
    // A micro-batch's losses weigh as its tokens among those of the global batch. Its balance is that of all context ranks.
    const double weight = config_.tensor.leads() ? ctx.loss_scale * static_cast<double>(n) : 0;
    const double of_all = weight * static_cast<double>(config_.context.ranks);
    ctx.math.gate_grad(ctx.stream, scratch.dgates, t.dy, saved[kResults], saved[kRows]);
    ctx.math.route_grad(ctx.stream, routing(n), t.carried[kDlogits], scratch.dgates, saved[kLogits], saved[kChosen],
                        saved[kLogSums], ctx.report, of_all * config_.experts.balance_loss,
                        weight * config_.experts.square_loss);
    ctx.math.dispatch(ctx.stream, t.carried[kDresults], t.dy, saved[kRows], saved[kGates]);
  }
  for (std::uint32_t e = 0; e < experts(); ++e) {
    if (!ctx.runs(first_expert(LayerCall::backward) + e)) continue;
    const auto [first, count] = rows_of_expert(ctx, e);
    if (count == 0) continue;
    experts_[e].input_grad(ctx, t.weights, row_slice(t.work[0], first, count), row_slice(t.carried[kDup], first, count),
                           row_slice(t.carried[kDresults], first, count), row_slice(saved[kUp], first, count),
                           ScratchArena(ctx.scratch));
  }
  if (ctx.runs(first_expert(LayerCall::backward) + experts())) {
    const TensorView dnormed = t.carried[kDnormed];
    ctx.math.combine(ctx.stream, dnormed, t.work[0], saved[kRows]);
    router_.input_grad(ctx, router_.prepare(ctx, t.weights, {}), dnormed, t.carried[kDlogits], Accumulate::yes);
    const Accumulate how = begin_residual(ctx, t.dx, t.dy);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, saved[kStatistics], how);
  }
}

void Moe::weight_half(LayerContext& ctx, const LayerTensors& t) const {
  const auto first_phase = first_expert(LayerCall::backward) + experts() + 1;
  for (std::uint32_t e = 0; e < experts(); ++e) {
    if (!ctx.runs(first_phase + e)) continue;
    const auto [first, count] = rows_of_expert(ctx, e);
    if (count == 0) {
      experts_[e].no_weight_grad(ctx, t.gradients, t.accumulate);
      continue;
    }
    experts_[e].weight_grad(ctx, t.gradients, row_slice(t.carried[kDup], first, count),
                            row_slice(t.carried[kDresults], first, count), row_slice(t.saved[kUp], first, count),
                            row_slice(t.saved[kInputs], first, count), ScratchArena(ctx.scratch), t.accumulate);
  }
  if (ctx.runs(first_phase + experts())) {
    ScratchArena arena(ctx.scratch);
    const RouterWeight scratch(*this, arena, ctx.shape.tokens());
    norm_.forward(ctx, t.weights, scratch.normed, t.x, scratch.statistics);
    router_.weight_grad(ctx, t.gradients, {}, t.carried[kDlogits], scratch.normed, t.accumulate);
    norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, scratch.statistics, t.accumulate);
  }
}

// A capacity is a bound for the tokens of a micro-batch: one position drops none.
void Moe::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                      std::int64_t position) const {
  check_decode(ctx, weights, cache, position);
  check("report", ctx.report, DType::fp64, {report_size()});
  auto of_all = routing(1);
  of_all.capacity = 0;
  if (ctx.runs(kRoute)) route(ctx, weights, x, cache, of_all);
  const auto first = first_expert(LayerCall::decode);
  run_experts(ctx, weights, cache, first);
  if (ctx.runs(first + experts())) bring_back(ctx, y, x, cache);
}

}  // namespace terrace::layers
