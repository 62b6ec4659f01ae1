#include <terrace/parallel/layers/mlp/expert.h>

#include <algorithm>
#include <iterator>

namespace terrace::layers {
namespace {

// One adapter for all results of a product.
LowRank::Result adapted(const std::string& prefix, std::string_view name, std::string_view target, const Product& product) {
  const auto& splits = product.projection().output_splits();
  auto split = splits.front();
  for (std::size_t i = 1; i < splits.size(); ++i) std::ranges::copy(splits[i].parts, std::back_inserter(split.parts));
  return {prefix + std::string(name), std::string(target), product.outputs(), split};
}

}  // namespace

// Tensor ranks split an expert as they split an MLP.
Expert::Expert(std::vector<ParamSpec>& params, const std::string& prefix, const Transformer& config, std::uint32_t unit)
    : activation_(config.activation),
      dtype_(config.dtype),
      up_(params,
          Product::first_of(prefix, config.names.expert_up, std::vector(up_results(config.activation), config.ffn),
                            std::vector(up_results(config.activation), config.tensor().ranks), config, {}),
          config),
      down_(params, Product::second_of(prefix, config.names.expert_down, config.ffn, config, {}), config) {
  const auto first = params.size();
  up_.declare(params, unit, config);
  down_.declare(params, unit, config);
  up_.adapt(params, {adapted(prefix, kExpertUp, kExpertsUp, up_)}, unit, config);
  down_.adapt(params, {adapted(prefix, kExpertDown, kExpertsDown, down_)}, unit, config);
  params[first].apart = true;  // the router is needed without the first expert
}

void Expert::name_params(std::vector<PhaseParam>& of_phase) const {
  for (const auto* const product : {&up_, &down_}) std::ranges::copy(product->params(0), std::back_inserter(of_phase));
}

void Expert::name_adapters(std::vector<PhaseParam>& of_phase) const {
  for (const auto* const product : {&up_, &down_}) std::ranges::copy(product->adapters(0), std::back_inserter(of_phase));
}

double Expert::flops(double rows) const {
  return 2 * rows * static_cast<double>(up_.inputs() * up_.outputs() + down_.inputs() * down_.outputs());
}

// An expert's phase counts no scratch (Phase::touched_bytes), so it adds the codes: a byte beside four.
double Expert::rounding_bytes(Calls calls, double rows) const {
  constexpr double kWithCodes = 1.25;
  const bool weights = calls != Calls::weight_grad;
  const double of_x = calls != Calls::input_grad ? rows : 0, of_dy = calls != Calls::forward ? rows : 0;
  return kWithCodes * (up_.rounding_bytes(weights, of_x, of_dy) + down_.rounding_bytes(weights, of_x, of_dy));
}

// The two products use the same scratch in turn.
std::uint64_t Expert::scratch_bytes(std::int64_t rows) const {
  std::uint64_t most = 0;
  for (const auto* const product : {&up_, &down_})
    most = std::max({most, product->scratch_bytes(0, rows, Calls::forward), product->scratch_bytes(0, rows, Calls::input_grad),
                     product->gradient_bytes(0, rows)});
  return scratch_of({middle(rows)}) + most;
}

void Expert::forward(LayerContext& ctx, Tensors weights, TensorView y, TensorView up, TensorView x, ScratchArena arena) const {
  const auto rows = x.shape[0];
  const auto activated = arena.take(middle(rows));
  auto again = arena;
  up_.forward(ctx, up_.prepare(ctx, weights, 0, rows, again, Calls::forward), up, x, Accumulate::no);
  ctx.math.activation(ctx.stream, activation_, activated, up);
  down_.forward(ctx, down_.prepare(ctx, weights, 0, rows, arena, Calls::forward), y, activated, Accumulate::no);
}

void Expert::input_grad(LayerContext& ctx, Tensors weights, TensorView dx, TensorView dup, TensorView dy, TensorView up,
                        ScratchArena arena) const {
  const auto rows = dy.shape[0];
  const auto dmiddle = arena.take(middle(rows));
  auto again = arena;
  down_.input_grad(ctx, down_.prepare(ctx, weights, 0, rows, again, Calls::input_grad), dmiddle, dy);
  ctx.math.activation_grad(ctx.stream, activation_, dup, dmiddle, up);
  up_.input_grad(ctx, up_.prepare(ctx, weights, 0, rows, arena, Calls::input_grad), dx, dup);
}

void Expert::weight_grad(LayerContext& ctx, Tensors weights, Tensors gradients, TensorView dup, TensorView dy, TensorView up,
                         TensorView x, ScratchArena arena, Accumulate accumulate) const {
  const auto activated = arena.take(middle(x.shape[0]));
  ctx.math.activation(ctx.stream, activation_, activated, up);
  down_.weight_grad(ctx, weights, gradients, 0, dy, activated, accumulate, arena);
  up_.weight_grad(ctx, weights, gradients, 0, dup, x, accumulate, arena);
}

void Expert::no_weight_grad(LayerContext& ctx, Tensors gradients, Accumulate accumulate) const {
  if (accumulate == Accumulate::yes) return;
  std::vector<PhaseParam> own;
  name_params(own);
  for (const auto& p : own)
    if (const auto& gradient = gradients[p.param]; !gradient.empty()) ctx.math.zero(ctx.stream, gradient);  // empty: frozen
}

}  // namespace terrace::layers
