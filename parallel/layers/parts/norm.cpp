#include <terrace/parallel/layers/parts/norm.h>

namespace terrace::layers {
Init gain_init(const Transformer& config) { return config.norm_offset == 0 ? Init{InitKind::ones} : Init{}; }

NormStatistics::NormStatistics(const TensorView& packed)
    : rstd(part(packed, 0, {packed.shape[1]})),
      mean(packed.shape[0] == 2 ? part(packed, packed.shape[1], {packed.shape[1]}) : TensorView{}) {}

NormStatistics NormStatistics::rows(std::int64_t first, std::int64_t count) const {
  NormStatistics some = *this;
  some.rstd = part(rstd, first, {count});
  some.mean = part(mean, first, {count});
  return some;
}

Norm::Norm(std::vector<ParamSpec>& params, std::string_view prefix, const Transformer& config)
    : first_(params.size()),
      present_(!prefix.empty()),
      centred_(present_ && config.norm == NormKind::layer),
      eps_(config.norm_eps),
      offset_(config.norm_offset),
      dtype_(config.dtype) {
  if (!present_) return;
  params.push_back({.name = weight_name(prefix), .shape = {config.hidden}, .init = gain_init(config), .decay = false});
  if (centred_) params.push_back({.name = bias_name(prefix), .shape = {config.hidden}, .init = {}, .decay = false});
}

TensorSpec Norm::statistics(std::int64_t rows) const {
  return {"norm statistics", accumulator_of(dtype_), {centred_ ? 2 : 1, rows}};
}

void Norm::name_params(std::vector<PhaseParam>& of_phase) const {
  for (std::size_t p = 0; present_ && p < (centred_ ? 2U : 1U); ++p)
    of_phase.push_back({static_cast<std::uint32_t>(first_ + p)});
}

void Norm::forward(LayerContext& ctx, Tensors weights, TensorView y, TensorView x, const NormStatistics& statistics) const {
  if (!present_) return ctx.math.convert(ctx.stream, y, x);
  ctx.math.norm(ctx.stream, y, statistics.mean, statistics.rstd, x, weights[first_],
                centred_ ? weights[first_ + 1] : TensorView{}, eps_, offset_);
}

void Norm::input_grad(LayerContext& ctx, Tensors weights, TensorView dx, TensorView dy, TensorView x,
                      const NormStatistics& statistics, Accumulate accumulate) const {
  if (!present_) return ctx.math.convert(ctx.stream, dx, dy, accumulate);
  ctx.math.norm_input_grad(ctx.stream, dx, dy, x, weights[first_], statistics.mean, statistics.rstd, accumulate, offset_);
}

void Norm::weight_grad(LayerContext& ctx, Tensors gradients, TensorView dy, TensorView x, const NormStatistics& statistics,
                       Accumulate accumulate) const {
  if (!present_) return;
  const auto gain = gradients[first_], bias = centred_ ? gradients[first_ + 1] : TensorView{};  // empty if frozen
  if (!gain.empty())
    ctx.math.norm_weight_grad(ctx.stream, gain, bias, dy, x, statistics.mean, statistics.rstd, accumulate);
  else if (!bias.empty())
    ctx.math.bias_grad(ctx.stream, bias, dy, accumulate);
}

}  // namespace terrace::layers
