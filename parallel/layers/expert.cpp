#include <terrace/parallel/layers/expert.h>

#include <algorithm>

namespace terrace::layers {

// Tensor ranks split an expert as they split an MLP.
Expert::Expert(std::vector<ParamSpec>& params, const std::string& prefix, const Transformer& config, std::uint32_t unit)
    : activation_(config.activation),
      dtype_(config.dtype),
      up_(params, prefix, config.names.expert_up, std::vector(up_results(config.activation), config.ffn), config.hidden,
          {Projection::Split::Of::outputs, std::vector(up_results(config.activation), config.tensor.ranks)}, config.init_std,
          config),
      down_(params, prefix, config.names.expert_down, {config.hidden}, config.ffn,
            {Projection::Split::Of::inputs, {config.tensor.ranks}}, config.residual_init_std(), config) {
  up_.set_unit(params, unit);
  down_.set_unit(params, unit);
  std::vector<PhaseParam> own;
  name_params(own);
  params[own.front().param].apart = true;  // the router is needed without the first expert
}

void Expert::name_params(std::vector<PhaseParam>& of_phase) const {
  up_.name_params(of_phase);
  down_.name_params(of_phase);
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
    most = std::max(most, arena.peak_bytes());
  }
  return most;
}

void Expert::forward(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView up, TensorView x,
                     ScratchArena arena) const {
  const Scratch scratch(*this, arena, x.shape[0], false);
  up_.forward(ctx, up_.prepare(ctx, weights, scratch.up), up, x);
  ctx.math.activation(ctx.stream, activation_, scratch.middle, up);
  down_.forward(ctx, down_.prepare(ctx, weights, {}), y, scratch.middle);
}

void Expert::input_grad(LayerContext& ctx, std::span<const TensorView> weights, TensorView dx, TensorView dup, TensorView dy,
                        TensorView up, ScratchArena arena) const {
  const Scratch scratch(*this, arena, dy.shape[0], false);
  down_.input_grad(ctx, down_.prepare(ctx, weights, {}), scratch.middle, dy);
  ctx.math.activation_grad(ctx.stream, activation_, dup, scratch.middle, up);
  up_.input_grad(ctx, up_.prepare(ctx, weights, scratch.up), dx, dup);
}

void Expert::weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, TensorView dup, TensorView dy, TensorView up,
                         TensorView x, ScratchArena arena, Accumulate accumulate) const {
  const Scratch scratch(*this, arena, x.shape[0], true);
  ctx.math.activation(ctx.stream, activation_, scratch.middle, up);
  down_.weight_grad(ctx, gradients, {}, dy, scratch.middle, accumulate);
  up_.weight_grad(ctx, gradients, scratch.up, dup, x, accumulate);
}

void Expert::no_weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, Accumulate accumulate) const {
  if (accumulate == Accumulate::yes) return;
  std::vector<PhaseParam> own;
  name_params(own);
  for (const auto& p : own) ctx.math.zero(ctx.stream, gradients[p.param]);
}

}  // namespace terrace::layers
