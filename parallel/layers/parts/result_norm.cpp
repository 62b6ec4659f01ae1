#include <terrace/parallel/layers/parts/result_norm.h>

#include <terrace/parallel/layers/parts/scratch.h>

namespace terrace::layers {

ResultNorm::ResultNorm(std::vector<ParamSpec>& params, std::string_view prefix, const Transformer& config)
    : norm_(params, prefix, config), dtype_(config.dtype), width_(config.hidden) {}

std::vector<TensorSpec> ResultNorm::saved(std::int64_t rows) const {
  if (!norm_) return {};
  return {{"input of the norm of the result", dtype_, {rows, width_}}, norm_.statistics(rows)};
}

TensorSpec ResultNorm::carried(std::int64_t rows) const { return {"gradient of the norm's input", dtype_, {rows, width_}}; }

void ResultNorm::forward(LayerContext& ctx, Tensors weights, TensorView y, TensorView x, const Saved& saved) const {
  norm_.forward(ctx, weights, y, saved.result, saved.statistics);
  ctx.math.add(ctx.stream, y, x, y);
}

void ResultNorm::input_grad(LayerContext& ctx, Tensors weights, TensorView dresult, TensorView dy, const Saved& saved,
                            std::int64_t first_row) const {
  const auto rows = dresult.shape[0];
  norm_.input_grad(ctx, weights, dresult, row_slice(dy, first_row, rows), row_slice(saved.result, first_row, rows),
                   NormStatistics(saved.statistics).rows(first_row, rows), Accumulate::no);
}

void ResultNorm::weight_grad(LayerContext& ctx, Tensors gradients, TensorView dy, const Saved& saved, Accumulate accumulate,
                             bool counts) const {
  if (!norm_) return;
  if (counts) return norm_.weight_grad(ctx, gradients, dy, saved.result, saved.statistics, accumulate);
  std::vector<PhaseParam> params;
  norm_.name_params(params);
  for (const auto& p : params)
    if (const auto& gradient = gradients[p.param]; accumulate == Accumulate::no && !gradient.empty())
      ctx.math.zero(ctx.stream, gradient);
}

void ResultNorm::describe_sum(CallSteps& steps, const TensorParallel& tensor, std::int64_t rows, std::uint32_t position,
                              const Find& find) const {
  const bool has_y = !tensor.sequence || tensor.leads();
  const PhaseTensor result(position, PhaseTensor::Of::saved);
  steps.exchange(Half::both, all_reduce(mesh::kTensorRanks, result, result, rows * width_));
  Phase end{.x = true, .y = Access::overwrite, .saved = Access::update};
  norm_.name_params(end.weights);
  steps.compute(std::move(end), [=, this](LayerContext& ctx, const LayerTensors& t) {
    forward(ctx, t.weights, t.y, t.x, find(t));
    if (!has_y) ctx.math.zero(ctx.stream, t.y);
  });
}

}  // namespace terrace::layers
