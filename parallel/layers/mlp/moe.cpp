#include <terrace/parallel/layers/mlp/moe.h>

#include <algorithm>
#include <string>

namespace terrace::layers {
namespace {

Transformer without_ranks(Transformer config) {
  config.place = {};
  return config;
}

}  // namespace

Moe::Moe(const Transformer& config, std::int64_t block)
    : TransformerLayer("layers." + std::to_string(block) + ".experts", config),
      norm_(params_, config.names.norm_in_block(block, config.names.mlp_norm), config),
      router_(params_, config.names.in_block(block, ""), {{config.names.router}}, {config.experts.count}, config.hidden, {},
              config.init_std, without_ranks(config)),
      result_norm_(params_, config.names.norm_in_block(block, config.names.mlp_result_norm), config) {
  const auto add = [&](const std::string& prefix) {
    experts_.emplace_back(params_, config.names.in_block(block, prefix), config_,
                          static_cast<std::uint32_t>(experts_.size() + 1));
  };
  const auto prefix_of = [&](std::int64_t expert) { return config.names.experts + std::to_string(expert) + "."; };
  const std::int64_t ranks = config.expert().ranks, each = config.experts.count / ranks;
  for (std::int64_t e = 0; e < each; ++e) {
    const auto first = params_.size();
    const auto own = prefix_of(config.expert().rank * each + e);
    add(own);
    for (auto p = first; ranks > 1 && p < params_.size(); ++p)
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        params_[p].dealt.push_back(config.names.in_block(block, prefix_of(rank * each + e)) +
                                   params_[p].name.substr(config.names.in_block(block, own).size()));
  }
  for (std::int64_t e = 0; e < config.experts.shared; ++e) add(config.names.shared_experts + std::to_string(e) + ".");
}

// In the order of Saved.
std::vector<TensorSpec> Moe::routed(std::int64_t tokens) const {
  const auto r = routing(tokens);
  const auto at = rows(tokens);
  const auto sums = accumulator_of(config_.dtype);
  std::vector<TensorSpec> all{
      norm_.statistics(tokens),
      {"router's logits", config_.dtype, {tokens, r.experts}},
      {"log-sum-exp of the router's logits", sums, {tokens}},
      {"gates", sums, {tokens, r.slots()}},
      {"chosen experts", DType::i32, {tokens, r.chosen}},
      {"rows of experts", DType::i32, {tokens, r.slots()}},
      {"experts' inputs", config_.dtype, {at.most_computed(), config_.hidden}},
      {"experts' activations' inputs", config_.dtype, {at.most_computed(), experts_.front().up_width()}},
      {"experts' results", config_.dtype, {at.most_own(), config_.hidden}}};
  std::ranges::copy(result_norm_.saved(tokens), std::back_inserter(all));
  return all;
}

LayerFacts Moe::facts(BatchShape shape) const {
  const auto n = shape.tokens(), computed = rows(n).most_computed();
  LayerFacts all{.saved = routed(n), .forward_flops = router_flops(n), .report_size = report_size(), .routing = routing(1)};
  all.carried = {{"gradient of experts' results", config_.dtype, {computed, config_.hidden}},
                 {"gradient of experts' activations' inputs", config_.dtype, {computed, experts_.front().up_width()}},
                 {"gradient of the router's logits", config_.dtype, {n, config_.experts.count}},
                 {"gradient of norm's result", config_.dtype, {n, config_.hidden}}};
  if (result_norm_) all.carried.push_back(result_norm_.carried(n));
  for (std::uint32_t e = 0; e < here(); ++e) all.forward_flops += experts_[e].flops(rows(n).usual_of(e));
  return all;
}

// One position has few rows, so the cache also has the experts' tensors, beside the router's.
std::vector<TensorSpec> Moe::cache(std::int64_t) const { return routed(1); }

void Moe::describe_call(CallSteps& steps, LayerCall call, BatchShape shape) const {
  if (call == LayerCall::forward) describe_forward(steps, shape.tokens());
  if (call == LayerCall::decode) describe_decode(steps);
  if (call != LayerCall::backward) return;
  describe_input_half(steps, shape.tokens());
  describe_weight_half(steps, shape.tokens());
}

// For each row, an expert reads and writes an input and a result of each of its two products' widths.
Phase Moe::of_expert(std::int64_t tokens, std::uint32_t expert, Expert::Calls calls) const {
  const auto at = rows(tokens);
  const auto row = static_cast<double>(2 * (config_.hidden + experts_[expert].up_width())) * size_of(config_.dtype);
  return {.scratch_bytes = experts_[expert].scratch_bytes(at.most_of(expert)),
          .flops = experts_[expert].flops(at.usual_of(expert)),
          .float8_flops = config_.products == Products::fp8 ? experts_[expert].flops(at.usual_of(expert)) : 0,
          .float8_bytes = experts_[expert].rounding_bytes(calls, at.usual_of(expert)),
          .touched_bytes = at.usual_of(expert) * row};
}

double* Moe::report(const LayerContext& ctx) const {
  check("report", ctx.report, DType::fp64, {report_size()});
  return ctx.report.as<double>();
}

TensorView Moe::routers_report(const LayerContext& ctx) const {
  static_cast<void>(report(ctx));
  return part(ctx.report, 0, {rows(ctx.shape.tokens()).counts()});
}

std::vector<Moe::Rows> Moe::blocks(const LayerContext& ctx, std::uint32_t expert) const {
  const auto at = rows(ctx.shape.tokens());
  const auto* const numbers = report(ctx);
  std::vector<Rows> all;
  for (const auto& [first, count] : at.computed(numbers, expert))
    if (count > 0) all.push_back({first, count, is_dealt(expert) ? first : at.own(numbers, expert).begin});
  return all;
}

}  // namespace terrace::layers
