// The tensors that a mixture of experts keeps, and what its phases use.
#include <algorithm>

#include <terrace/parallel/layers/mlp/moe.h>

namespace terrace::layers {

std::int64_t Moe::report_size() const { return rows(1).report_size(); }

// The order: the router, exchanges of counts and rows, the chosen experts, the rows back, the shared experts, the result.
Moe::Steps Moe::steps(LayerCall call) const {
  Steps s;
  std::uint32_t next = kRoute + 1;
  const bool moves = are_dealt() && call != LayerCall::decode;
  if (call == LayerCall::forward && merges()) s.merge = next++;
  if (call == LayerCall::forward && moves) {
    s.count = next++;
    s.told = next++;
  }
  if (moves) s.go = next++;
  s.experts = next;
  next += chosen_here();
  if (moves) s.back = next++;
  s.shared = next;
  s.end = next + here() - chosen_here();
  return s;
}

Moe::ForwardWork Moe::forward_work() const {
  const std::uint32_t first = merges() ? 2 : 0;
  return {.rows = first, .rows_by_rank = first + 1, .sent = first + 2, .results = first + 3};
}

// In the order of Saved.
std::vector<TensorSpec> Moe::routed(std::int64_t tokens) const {
  const auto r = routing(tokens);
  const auto at = rows(tokens);
  const auto sums = accumulator_of(config_.dtype);
  return {norm_.statistics(tokens),
          {"router's logits", config_.dtype, {tokens, r.experts}},
          {"log-sum-exp of the router's logits", sums, {tokens}},
          {"gates", sums, {tokens, r.slots()}},
          {"chosen experts", DType::i32, {tokens, r.chosen}},
          {"rows of experts", DType::i32, {tokens, r.slots()}},
          {"experts' inputs", config_.dtype, {at.most_computed(), config_.hidden}},
          {"experts' activations' inputs", config_.dtype, {at.most_computed(), experts_.front().up_width()}},
          {"experts' results", config_.dtype, {at.most_own(), config_.hidden}}};
}

std::vector<TensorSpec> Moe::saved(BatchShape shape) const { return routed(shape.tokens()); }

std::vector<TensorSpec> Moe::carried(BatchShape shape) const {
  const auto n = shape.tokens(), computed = rows(n).most_computed();
  return {{"gradient of experts' results", config_.dtype, {computed, config_.hidden}},
          {"gradient of experts' activations' inputs", config_.dtype, {computed, experts_.front().up_width()}},
          {"gradient of the router's logits", config_.dtype, {n, config_.experts.count}},
          {"gradient of norm's result", config_.dtype, {n, config_.hidden}}};
}

// In the order of ForwardWork and of BackwardWork.
std::vector<TensorSpec> Moe::work(LayerCall call, BatchShape shape) const {
  const auto at = rows(shape.tokens());
  const TensorSpec own{"own rows of experts", config_.dtype, {at.most_own(), config_.hidden}};
  std::vector<TensorSpec> all;
  if (call == LayerCall::forward) {
    if (merges()) {
      const Shape counts{config_.context.ranks, 2 * config_.experts.count};
      all = {{"what this rank's router counted, for each rank", DType::fp64, counts},
             {"what routers counted, by rank", DType::fp64, counts}};
    }
    if (are_dealt()) {
      all.push_back({"rows for each expert", DType::fp64, {config_.experts.count}});
      all.push_back({"rows for each expert, by rank", DType::fp64, {config_.expert.ranks * config_.experts.count}});
      all.push_back(own);
      all.push_back({"experts' results for other ranks", config_.dtype, {at.most_computed(), config_.hidden}});
    }
  } else if (call == LayerCall::backward) {
    all.push_back({"gradient of experts' inputs", config_.dtype, {at.most_computed(), config_.hidden}});
    if (are_dealt()) all.insert(all.end(), 2, own);
  }
  return all;
}

// One position has few rows, so the cache also has the experts' tensors, beside the router's.
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
  double flops = router_flops(shape.tokens());
  for (std::uint32_t e = 0; e < here(); ++e) flops += experts_[e].flops(rows(shape.tokens()).usual_of(e));
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

Phase Moe::counting() const {
  const auto work = forward_work();
  return {.scratch_bytes = 0,
          .exchange = PhaseExchange{.members = kExpertRanks,
                                    .from = work.rows,
                                    .to = work.rows_by_rank,
                                    .sent = {config_.experts.count},
                                    .received = {config_.expert.ranks * config_.experts.count},
                                    .operation = Operation::all_gather}};
}

// Rows go to the ranks of their experts, or return.
Phase Moe::moving(std::int64_t tokens, PhaseTensor from, PhaseTensor to, bool returns) const {
  const auto at = rows(tokens);
  const std::vector usual(config_.expert.ranks, at.usual_between() * config_.hidden);
  return {.scratch_bytes = 0,
          .exchange = PhaseExchange{.members = kExpertRanks,
                                    .from = from,
                                    .to = to,
                                    .sent = usual,
                                    .received = usual,
                                    .told = returns ? at.back() : at.there()}};
}

// For each row, an expert reads and writes an input and a result of each of its two products' widths.
Phase Moe::of_expert(std::int64_t tokens, std::uint32_t expert) const {
  const auto at = rows(tokens);
  const auto row = static_cast<double>(2 * (config_.hidden + experts_[expert].up_width())) * size_of(config_.dtype);
  return {.scratch_bytes = experts_[expert].scratch_bytes(at.most_of(expert)),
          .flops = experts_[expert].flops(at.usual_of(expert)),
          .touched_bytes = at.usual_of(expert) * row};
}

std::vector<Phase> Moe::forward_phases(LayerCall call, std::int64_t tokens) const {
  const auto s = steps(call);
  const auto work = forward_work();
  const bool merging = s.merge != kNone, moving_rows = s.go != kNone;
  std::vector<Phase> all(s.end + 1, Phase{.scratch_bytes = 0});
  all[kRoute] = {.weights = params_of(norm_, router_),
                 .x = true,
                 .saved = Access::overwrite,
                 .scratch_bytes = bytes_of<Route>(*this, tokens),
                 .flops = router_flops(tokens)};
  for (std::uint32_t e = 0; e < here(); ++e) {
    auto& phase = all[step_of(s, e)] = of_expert(tokens, e);
    phase.weights = params_of(experts_[e]);
    phase.saved = Access::update;
    if (moving_rows && e < chosen_here()) phase.work = {{work.results, e == 0 ? Access::overwrite : Access::update}};
  }
  all[s.end] = {.x = true, .y = Access::overwrite, .saved = Access::read, .scratch_bytes = 0};
  if (merging) {
    const std::vector<std::int64_t> counts(config_.context.ranks, 2 * config_.experts.count);
    all[kRoute].work = {{work.counted, Access::overwrite}};
    all[s.merge].exchange = PhaseExchange{kContextRanks, work.counted, work.counted_by_rank, counts, counts};
  }
  if (moving_rows) {
    all[kRoute].work.insert(all[kRoute].work.end(), {{work.rows, Access::overwrite}, {work.sent, Access::overwrite}});
    all[s.count] = counting();
    all[s.told].work = {{work.rows_by_rank, Access::read}, {work.sent, Access::read}};
    all[s.told].saved = Access::update;
    all[s.go] = moving(tokens, work.sent, {kInputs, PhaseTensor::Of::saved}, false);
    all[s.back] = moving(tokens, work.results, {kResults, PhaseTensor::Of::saved}, true);
    all[s.go].saved = all[s.back].saved = Access::update;
  }
  if (merging) all[moving_rows ? s.told : s.experts].work.push_back({work.counted_by_rank, Access::read});
  return all;
}

// For one position, few experts have a row.
std::vector<Phase> Moe::decode_phases() const {
  auto all = forward_phases(LayerCall::decode, 1);
  const auto s = steps(LayerCall::decode);
  for (std::uint32_t e = 0; e < here(); ++e)
    all[step_of(s, e)].unless_zero = static_cast<std::uint32_t>(RoutingReport::kRows) + e;
  return all;
}

// The gates, each expert and the router in the input half; each expert and the router in the weight half.
std::vector<Phase> Moe::backward_phases(std::int64_t tokens) const {
  const auto s = steps(LayerCall::backward);
  std::vector<Phase> all(s.end + 1);
  all[kRoute] = {
      .dy = true, .saved = Access::read, .carried = Access::overwrite, .scratch_bytes = bytes_of<Gates>(*this, tokens)};
  for (std::uint32_t e = 0; e < here(); ++e) {
    auto& phase = all[step_of(s, e)] = of_expert(tokens, e);
    phase.weights = params_of(experts_[e]);
    phase.saved = Access::read;
    phase.carried = Access::update;
    phase.work = {are_dealt() && e >= chosen_here() ? PhaseWork{kReturned, Access::update}
                                                    : PhaseWork{kDinputs, e == 0 ? Access::overwrite : Access::update}};
  }
  if (are_dealt()) {
    all[kRoute].work = {{kSentGradients, Access::overwrite}};
    all[s.go] = moving(tokens, kSentGradients, {kDresults, PhaseTensor::Of::carried}, false);
    all[s.go].carried = Access::update;
    all[s.back] = moving(tokens, kDinputs, kReturned, true);
  }
  all[s.end] = {.weights = params_of(norm_, router_),
                .x = true,
                .dy = true,
                .dx = Access::overwrite,
                .saved = Access::read,
                .carried = Access::update,
                .work = {{are_dealt() ? kReturned : kDinputs, Access::read}},
                .scratch_bytes = 0,
                .flops = router_flops(tokens)};
  for (auto& phase : all) phase.half = Half::input;
  add_weight_phases(all, tokens);
  return all;
}

void Moe::add_weight_phases(std::vector<Phase>& all, std::int64_t tokens) const {
  for (std::uint32_t e = 0; e < here(); ++e) {
    auto& phase = all.emplace_back(of_expert(tokens, e));
    phase.half = Half::weight;
    experts_[e].name_adapters(phase.weights);
    phase.gradients = params_of(experts_[e]);
    phase.saved = phase.carried = Access::read;
  }
  all.push_back({.half = Half::weight,
                 .weights = params_of(norm_),
                 .gradients = params_of(norm_, router_),
                 .x = true,
                 .carried = Access::read,
                 .scratch_bytes = bytes_of<RouterWeight>(*this, tokens),
                 .flops = router_flops(tokens)});
}

}  // namespace terrace::layers
