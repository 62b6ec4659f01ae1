#include <terrace/parallel/layers/mlp/moe.h>

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
      norm_(params_, config.names.norm_in_block(block, config.names.mlp_norm), config),
      router_(params_, config.names.in_block(block, ""), {{config.names.router}}, {config.experts.count}, config.hidden, {},
              config.init_std, without_ranks(config)) {
  const auto add = [&](const std::string& prefix) {
    experts_.emplace_back(params_, config.names.in_block(block, prefix), config_,
                          static_cast<std::uint32_t>(experts_.size() + 1));
  };
  const auto prefix_of = [&](std::int64_t expert) { return config.names.experts + std::to_string(expert) + "."; };
  const std::int64_t ranks = config.expert.ranks, each = config.experts.count / ranks;
  for (std::int64_t e = 0; e < each; ++e) {
    const auto first = params_.size();
    const auto own = prefix_of(config.expert.rank * each + e);
    add(own);
    for (auto p = first; ranks > 1 && p < params_.size(); ++p)
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        params_[p].dealt.push_back(config.names.in_block(block, prefix_of(rank * each + e)) +
                                   params_[p].name.substr(config.names.in_block(block, own).size()));
  }
  for (std::int64_t e = 0; e < config.experts.shared; ++e) add(config.names.shared_experts + std::to_string(e) + ".");
}

TensorView Moe::routers_report(const LayerContext& ctx) const {
  return part(ctx.report, 0, {rows(ctx.shape.tokens()).counts()});
}

// `dispatched`: gets the rows that go to experts.
void Moe::route(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, std::span<const TensorView> saved,
                TensorView dispatched, const Routing& routing, TensorView targets) const {
  ScratchArena arena(ctx.scratch);
  const Route scratch(*this, arena, ctx.shape.tokens());
  norm_.forward(ctx, weights, scratch.normed, x, saved[kStatistics]);
  router_.forward(ctx, router_.prepare(ctx, weights, {}), saved[kLogits], scratch.normed);
  ctx.math.route(ctx.stream, routing, saved[kGates], saved[kChosen], saved[kRows], saved[kLogSums], routers_report(ctx),
                 saved[kLogits], targets);
  ctx.math.dispatch(ctx.stream, dispatched, scratch.normed, saved[kRows]);
}

// Counts what other ranks must know of this rank's tokens.
void Moe::count(LayerContext& ctx, const LayerTensors& t) const {
  const auto r = routing(ctx.shape.tokens());
  const auto work = forward_work();
  const std::int64_t each = 2 * r.experts;
  for (std::int64_t rank = 0; merges() && rank < config_.context.ranks; ++rank)
    ctx.math.convert(ctx.stream, part(t.work[work.counted], rank * each, {each}),
                     part(ctx.report, RoutingReport{r}.asked(), {each}));
  if (are_dealt()) ctx.math.convert(ctx.stream, t.work[work.rows], part(ctx.report, RoutingReport::kRows, {r.experts}));
}

// Runs after the router: from here on the host knows how many rows each expert has.
void Moe::learn(LayerContext& ctx, const LayerTensors& t) const {
  const auto at = rows(ctx.shape.tokens());
  const auto work = forward_work();
  if (merges())
    ctx.math.merge_reports(ctx.stream, routing(ctx.shape.tokens()), routers_report(ctx), t.work[work.counted_by_rank]);
  if (are_dealt()) {
    const auto& counts = t.work[work.rows_by_rank];
    ctx.math.convert(ctx.stream, part(ctx.report, at.counts(), counts.shape), counts);
  }
  ctx.stream.synchronize();
  if (!are_dealt()) return;
  at.tell(ctx.report.as<double>());
  keep_shared(ctx, t.saved[kInputs], t.work[work.sent]);
}

void Moe::keep_shared(LayerContext& ctx, TensorView computed, TensorView own) const {
  const auto at = rows(ctx.shape.tokens());
  const auto* const report = ctx.report.as<double>();
  for (auto e = chosen_here(); e < here(); ++e) {
    const auto to = at.computed(report, e).front(), from = at.own(report, e);
    ctx.math.convert(ctx.stream, row_slice(computed, to.begin, to.count), row_slice(own, from.begin, from.count));
  }
}

void Moe::run_experts(LayerContext& ctx, std::span<const TensorView> weights, std::span<const TensorView> saved,
                      TensorView results, const Steps& s) const {
  const auto at = rows(ctx.shape.tokens());
  const auto* const report = ctx.report.as<double>();
  for (std::uint32_t e = 0; e < here(); ++e) {
    if (!ctx.runs(step_of(s, e))) continue;
    const bool stays = !are_dealt() || at.is_shared(e);
    for (const auto& [first, count] : at.computed(report, e)) {
      if (count == 0) continue;
      experts_[e].forward(
          ctx, weights, stays ? row_slice(saved[kResults], at.own(report, e).begin, count) : row_slice(results, first, count),
          row_slice(saved[kUp], first, count), row_slice(saved[kInputs], first, count), ScratchArena(ctx.scratch));
    }
  }
}

void Moe::bring_back(LayerContext& ctx, TensorView y, TensorView x, std::span<const TensorView> saved) const {
  const Accumulate how = begin_residual(ctx, y, x);
  ctx.math.combine(ctx.stream, y, saved[kResults], saved[kRows], saved[kGates], how);
}

void Moe::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {});
  check("report", ctx.report, DType::fp64, {report_size()});
  const auto s = steps(LayerCall::forward);
  const auto work = forward_work();
  if (ctx.runs(kRoute)) {
    route(ctx, t.weights, t.x, t.saved, are_dealt() ? t.work[work.sent] : t.saved[kInputs], routing(ctx.shape.tokens()),
          ctx.targets);
    count(ctx, t);
  }
  if (ctx.runs(are_dealt() ? s.told : s.experts)) learn(ctx, t);
  run_experts(ctx, t.weights, t.saved, are_dealt() ? t.work[work.results] : TensorView{}, s);
  if (ctx.runs(s.end)) bring_back(ctx, t.y, t.x, t.saved);
}

void Moe::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {});
  check("report", ctx.report, DType::fp64, {report_size()});
  if (has(half, Half::input)) input_half(ctx, t);
  if (has(half, Half::weight)) weight_half(ctx, t);
}

void Moe::gates(LayerContext& ctx, const LayerTensors& t) const {
  const auto& saved = t.saved;
  const auto n = ctx.shape.tokens();
  ScratchArena arena(ctx.scratch);
  const Gates scratch(*this, arena, n);
  // A micro-batch's router losses are weighted by its share of the global batch's tokens, both without padding. The balance is
  // that of all context ranks together.
  const auto r = routing(n);
  const auto* const report = ctx.report.as<double>();
  const double tokens = report[RoutingReport::kTokens],
               of_ranks = RoutingReport{r}.choices(report) / static_cast<double>(r.chosen);
  const double weight = config_.tensor.leads() ? ctx.token_scale * tokens : 0;
  const double of_all = tokens == 0 ? 0 : weight * (of_ranks / tokens);
  ctx.math.gate_grad(ctx.stream, scratch.dgates, t.dy, saved[kResults], saved[kRows]);
  ctx.math.route_grad(ctx.stream, r, t.carried[kDlogits], scratch.dgates, saved[kLogits], saved[kChosen], saved[kLogSums],
                      routers_report(ctx), of_all * config_.experts.balance_loss, weight * config_.experts.square_loss);
  const auto dispatched = are_dealt() ? t.work[kSentGradients] : t.carried[kDresults];
  ctx.math.dispatch(ctx.stream, dispatched, t.dy, saved[kRows], saved[kGates]);
  if (are_dealt()) keep_shared(ctx, t.carried[kDresults], dispatched);
}

void Moe::input_half(LayerContext& ctx, const LayerTensors& t) const {
  const auto& saved = t.saved;
  const auto s = steps(LayerCall::backward);
  const auto at = rows(ctx.shape.tokens());
  const auto* const report = ctx.report.as<double>();
  if (ctx.runs(kRoute)) gates(ctx, t);
  for (std::uint32_t e = 0; e < here(); ++e) {
    if (!ctx.runs(step_of(s, e))) continue;
    const bool stays = are_dealt() && at.is_shared(e);
    for (const auto& [first, count] : at.computed(report, e)) {
      if (count == 0) continue;
      experts_[e].input_grad(
          ctx, t.weights,
          stays ? row_slice(t.work[kReturned], at.own(report, e).begin, count) : row_slice(t.work[kDinputs], first, count),
          row_slice(t.carried[kDup], first, count), row_slice(t.carried[kDresults], first, count),
          row_slice(saved[kUp], first, count), ScratchArena(ctx.scratch));
    }
  }
  if (ctx.runs(s.end)) {
    const TensorView dnormed = t.carried[kDnormed];
    ctx.math.combine(ctx.stream, dnormed, t.work[are_dealt() ? kReturned : kDinputs], saved[kRows]);
    router_.input_grad(ctx, router_.prepare(ctx, t.weights, {}), dnormed, t.carried[kDlogits], Accumulate::yes);
    const Accumulate how = begin_residual(ctx, t.dx, t.dy);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, saved[kStatistics], how);
  }
}

void Moe::weight_half(LayerContext& ctx, const LayerTensors& t) const {
  const auto first_phase = steps(LayerCall::backward).end + 1;
  const auto at = rows(ctx.shape.tokens());
  for (std::uint32_t e = 0; e < here(); ++e) {
    if (!ctx.runs(first_phase + e)) continue;
    auto how = t.accumulate;
    bool has_rows = false;
    for (const auto& [first, count] : at.computed(ctx.report.as<double>(), e)) {
      if (count == 0) continue;
      experts_[e].weight_grad(ctx, t.weights, t.gradients, row_slice(t.carried[kDup], first, count),
                              row_slice(t.carried[kDresults], first, count), row_slice(t.saved[kUp], first, count),
                              row_slice(t.saved[kInputs], first, count), ScratchArena(ctx.scratch), how);
      how = Accumulate::yes;
      has_rows = true;
    }
    if (!has_rows) experts_[e].no_weight_grad(ctx, t.gradients, t.accumulate);
  }
  if (ctx.runs(first_phase + here())) {
    ScratchArena arena(ctx.scratch);
    const RouterWeight scratch(*this, arena, ctx.shape.tokens());
    norm_.forward(ctx, t.weights, scratch.normed, t.x, scratch.statistics);
    router_.weight_grad(ctx, t.gradients, {}, t.carried[kDlogits], scratch.normed, t.accumulate);
    norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, scratch.statistics, t.accumulate);
  }
}

// A capacity limits the rows of a micro-batch, so a single position drops none.
void Moe::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                      std::int64_t position) const {
  check_decode(ctx, weights, cache, position);
  check("report", ctx.report, DType::fp64, {report_size()});
  auto of_all = routing(1);
  of_all.capacity = 0;
  const auto s = steps(LayerCall::decode);
  if (ctx.runs(kRoute)) route(ctx, weights, x, cache, cache[kInputs], of_all, {});
  if (ctx.runs(s.experts)) ctx.stream.synchronize();  // waits for the router's report
  run_experts(ctx, weights, cache, {}, s);
  if (ctx.runs(s.end)) bring_back(ctx, y, x, cache);
}

}  // namespace terrace::layers
