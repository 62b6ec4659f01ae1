#include <terrace/parallel/layers/mlp/expert.h>

#include <algorithm>
#include <iterator>

namespace terrace::layers {
namespace {

// One adapter for all results of a product.
LowRank::Result adapted(const std::string& prefix, std::string_view name, std::string_view target, const Projection& product) {
  auto split = product.output_splits().front();
  for (std::size_t i = 1; i < product.output_splits().size(); ++i)
    std::ranges::copy(product.output_splits()[i].parts, std::back_inserter(split.parts));
  return {prefix + std::string(name), std::string(target), product.outputs(), split};
}

}  // namespace

// Tensor ranks split an expert as they split an MLP.
Expert::Expert(std::vector<ParamSpec>& params, const std::string& prefix, const Transformer& config, std::uint32_t unit)
    : activation_(config.activation),
      dtype_(config.dtype),
      up_(params, prefix, config.names.expert_up, std::vector(up_results(config.activation), config.ffn), config.hidden,
          {Projection::Split::Of::outputs, std::vector(up_results(config.activation), config.tensor().ranks)}, config.init_std,
          config),
      down_(params, prefix, config.names.expert_down, {config.hidden}, config.ffn,
            {Projection::Split::Of::inputs, {config.tensor().ranks}}, config.residual_init_std(), config),
      up_adapter_(params, {adapted(prefix, kExpertUp, kExpertsUp, up_)}, up_, unit, config),
      down_adapter_(params, {adapted(prefix, kExpertDown, kExpertsDown, down_)}, down_, unit, config) {
  up_.set_unit(params, unit);
  down_.set_unit(params, unit);
  std::vector<PhaseParam> own;
  name_params(own);
  params[own.front().param].apart = true;  // the router is needed without the first expert
}

void Expert::name_params(std::vector<PhaseParam>& of_phase) const {
  up_.name_params(of_phase);
  down_.name_params(of_phase);
  name_adapters(of_phase);
}

void Expert::name_adapters(std::vector<PhaseParam>& of_phase) const {
  up_adapter_.name_params(of_phase);
  down_adapter_.name_params(of_phase);
}

double Expert::flops(double rows) const {
  return 2 * rows * static_cast<double>(up_.inputs() * up_.outputs() + down_.inputs() * down_.outputs());
}

Expert::Scratch::Scratch(const Expert& expert, ScratchArena& arena, std::int64_t rows, bool of_gradient)
    : middle(arena.take(expert.dtype_, {rows, expert.down_.inputs()})),
      up(of_gradient ? expert.up_.place_gradient(arena) : expert.up_.place_weights(arena)) {}

std::uint64_t Expert::scratch_bytes(std::int64_t rows) const {
  std::uint64_t most = 0;
  for (const bool of_gradient : {false, true}) {
    ScratchArena arena;
    static_cast<void>(Scratch(*this, arena, rows, of_gradient));
    const auto adapters = of_gradient ? std::max(up_adapter_.gradient_bytes(rows), down_adapter_.gradient_bytes(rows))
                                      : std::max(up_adapter_.bytes(rows), down_adapter_.bytes(rows));
    most = std::max(most, arena.peak_bytes() + adapters);
  }
  return most;
}

namespace {

// The two adapters use the same scratch in turn.
LowRank::Room room(const LowRank& adapter, ScratchArena arena, std::int64_t rows) { return adapter.place(arena, rows); }
LowRank::GradientRoom gradient_room(const LowRank& adapter, ScratchArena arena, std::int64_t rows) {
  return adapter.place_gradient(arena, rows);
}

}  // namespace

void Expert::forward(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView up, TensorView x,
                     ScratchArena arena) const {
  const auto rows = x.shape[0];
  const Scratch scratch(*this, arena, rows, false);
  up_.forward(ctx, up_.prepare(ctx, weights, scratch.up), up, x);
  up_adapter_.forward(ctx, weights, room(up_adapter_, arena, rows), up, x);
  ctx.math.activation(ctx.stream, activation_, scratch.middle, up);
  down_.forward(ctx, down_.prepare(ctx, weights, {}), y, scratch.middle);
  down_adapter_.forward(ctx, weights, room(down_adapter_, arena, rows), y, scratch.middle);
}

void Expert::input_grad(LayerContext& ctx, std::span<const TensorView> weights, TensorView dx, TensorView dup, TensorView dy,
                        TensorView up, ScratchArena arena) const {
  const auto rows = dy.shape[0];
  const Scratch scratch(*this, arena, rows, false);
  down_.input_grad(ctx, down_.prepare(ctx, weights, {}), scratch.middle, dy);
  down_adapter_.input_grad(ctx, weights, room(down_adapter_, arena, rows), scratch.middle, dy);
  ctx.math.activation_grad(ctx.stream, activation_, dup, scratch.middle, up);
  up_.input_grad(ctx, up_.prepare(ctx, weights, scratch.up), dx, dup);
  up_adapter_.input_grad(ctx, weights, room(up_adapter_, arena, rows), dx, dup);
}

void Expert::weight_grad(LayerContext& ctx, std::span<const TensorView> weights, std::span<const TensorView> gradients,
                         TensorView dup, TensorView dy, TensorView up, TensorView x, ScratchArena arena,
                         Accumulate accumulate) const {
  const auto rows = x.shape[0];
  const Scratch scratch(*this, arena, rows, true);
  ctx.math.activation(ctx.stream, activation_, scratch.middle, up);
  down_.weight_grad(ctx, gradients, {}, dy, scratch.middle, accumulate);
  down_adapter_.weight_grad(ctx, weights, gradients, gradient_room(down_adapter_, arena, rows), dy, scratch.middle, accumulate);
  up_.weight_grad(ctx, gradients, scratch.up, dup, x, accumulate);
  up_adapter_.weight_grad(ctx, weights, gradients, gradient_room(up_adapter_, arena, rows), dup, x, accumulate);
}

void Expert::no_weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, Accumulate accumulate) const {
  if (accumulate == Accumulate::yes) return;
  std::vector<PhaseParam> own;
  name_params(own);
  for (const auto& p : own)
    if (const auto& gradient = gradients[p.param]; !gradient.empty()) ctx.math.zero(ctx.stream, gradient);  // empty: frozen
}

}  // namespace terrace::layers
