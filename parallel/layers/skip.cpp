#include <terrace/parallel/layers/skip.h>

#include <algorithm>

namespace terrace::layers {
namespace {

std::span<const TensorView> without_last(std::span<const TensorView> views) {
  return views.empty() ? views : views.first(views.size() - 1);
}

}  // namespace

Skip::Skip(const Transformer& config, std::int64_t block, std::uint32_t from, std::unique_ptr<TransformerLayer> inner)
    : TransformerLayer(inner->name(), config), from_(from), inner_(std::move(inner)) {
  params_ = inner_->params();
  params_.push_back({.name = weight_name(config.names.in_block(block, "skip")),
                     .shape = {config.hidden},
                     .init = {InitKind::ones},
                     .decay = 0,
                     .unit = params_.back().unit});
}

std::vector<TensorSpec> Skip::saved(BatchShape shape) const {
  auto all = inner_->saved(shape);
  all.push_back({"input with the skip", config_.dtype, {shape.tokens(), config_.hidden}});
  return all;
}

std::vector<TensorSpec> Skip::carried(BatchShape shape) const {
  auto all = inner_->carried(shape);
  all.push_back({"gradient of the skip's weight", accumulator_of(config_.dtype), {config_.hidden}});
  return all;
}

// Generation has no saved tensors: there the sum lies behind the inner layer's scratch.
std::uint64_t Skip::scratch_bytes(BatchShape shape) const {
  ScratchArena sum;
  sum.take(config_.dtype, {1, config_.hidden});
  const auto decode = round_up(inner_->scratch_bytes({1, 1}), ScratchArena::kAlignBytes) + sum.peak_bytes();
  return std::max(inner_->scratch_bytes(shape), decode);
}

LayerTensors Skip::inner_tensors(const LayerTensors& t) {
  auto inner = t;
  inner.weights = without_last(t.weights);
  inner.gradients = without_last(t.gradients);
  inner.saved = without_last(t.saved);
  inner.carried = without_last(t.carried);
  inner.x = t.saved.back();
  return inner;
}

void Skip::add_skip(LayerContext& ctx, TensorView weight, TensorView sum, TensorView x) const {
  check("skip", ctx.skip, config_.dtype, sum.shape);
  ctx.math.convert(ctx.stream, sum, x);
  ctx.math.scale(ctx.stream, sum, ctx.skip, weight, Accumulate::yes);
}

void Skip::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {});
  add_skip(ctx, t.weights.back(), t.saved.back(), t.x);
  inner_->forward(ctx, inner_tensors(t));
}

void Skip::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {.x = false});
  inner_->backward(ctx, inner_tensors(t), half);
  if (has(half, Half::input)) {  // dx is the sum's gradient
    check("dx", t.dx, config_.dtype, t.saved.back().shape);
    check("skip", ctx.skip, config_.dtype, t.dx.shape);
    check("gradient of skip", t.dskip, config_.dtype, t.dx.shape);
    ctx.math.scale(ctx.stream, t.dskip, t.dx, t.weights.back(), Accumulate::no);
    ctx.math.norm_weight_grad(ctx.stream, t.carried.back(), {}, t.dx, ctx.skip, {}, {}, Accumulate::no);
  }
  if (has(half, Half::weight)) ctx.math.convert(ctx.stream, t.gradients.back(), t.carried.back(), t.accumulate);
}

void Skip::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y,
                       CacheViews cache_views, std::int64_t position) const {
  check_decode(ctx, weights, cache_views, position);
  check("x", x, config_.dtype, {1, config_.hidden});
  const auto inner_bytes = round_up(inner_->scratch_bytes(ctx.shape), ScratchArena::kAlignBytes);
  const auto words = static_cast<std::int64_t>(inner_bytes / 4);
  if (ctx.scratch.elements() < words) fail("scratch is too small");
  ScratchArena arena(part(ctx.scratch, words, {ctx.scratch.elements() - words}));
  const auto sum = arena.take(config_.dtype, {1, config_.hidden});
  add_skip(ctx, weights.back(), sum, x);
  inner_->decode_step(ctx, without_last(weights), sum, y, cache_views, position);
}

}  // namespace terrace::layers
