#include <terrace/parallel/layers/parts/skip.h>

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
  weight_ = is_in_tiles() ? 0 : static_cast<std::uint32_t>(params_.size());
  params_.insert(params_.begin() + weight_, {.name = weight_name(config.names.in_block(block, "skip")),
                                             .shape = {config.hidden},
                                             .init = {InitKind::ones},
                                             .decay = 0,
                                             .unit = is_in_tiles() ? 0 : params_.back().unit});
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

// Generation has no saved tensors, so the sum follows the inner layer's scratch.
std::uint64_t Skip::decode_bytes() const {
  ScratchArena sum;
  sum.take(config_.dtype, {1, config_.hidden});
  return round_up(inner_->scratch_bytes({1, 1}), ScratchArena::kAlignBytes) + sum.peak_bytes();
}

std::uint64_t Skip::scratch_bytes(BatchShape shape) const { return std::max(inner_->scratch_bytes(shape), decode_bytes()); }

std::vector<Phase> Skip::phases(LayerCall call, BatchShape shape) const {
  if (!is_in_tiles()) return {};
  auto all = inner_->phases(call, shape);
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& phase = all[i];
    for (auto* const params : {&phase.weights, &phase.gradients})
      for (auto& p : *params)
        if (p.param >= weight_) ++p.param;
    const bool adds = phase.x && (call == LayerCall::decode || (call == LayerCall::forward && i == 0));
    if (adds || phase.dx) phase.weights.push_back({weight_});
    if (phase.x && !adds) {  // reads the saved sum instead
      phase.x = false;
      phase.saved = phase.saved.value_or(Access::read);
    }
    if (adds && call == LayerCall::decode) phase.scratch_bytes = decode_bytes();
    if (phase.dx) phase.carried = phase.carried.value_or(Access::update);
  }
  if (call == LayerCall::backward && !all.empty()) {  // the last phase is of the weight half
    all.back().gradients.push_back({weight_});
    all.back().carried = all.back().carried.value_or(Access::read);
  }
  return all;
}

std::span<const TensorView> Skip::of_inner(std::span<const TensorView> weights) const {
  return weights.empty() || weight_ != 0 ? without_last(weights) : weights.subspan(1);
}

LayerTensors Skip::inner_tensors(const LayerTensors& t) const {
  auto inner = t;
  inner.weights = of_inner(t.weights);
  inner.gradients = of_inner(t.gradients);
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
  if (ctx.runs(0)) add_skip(ctx, t.weights[weight_], t.saved.back(), t.x);
  inner_->forward(ctx, inner_tensors(t));
}

void Skip::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {.x = false});
  inner_->backward(ctx, inner_tensors(t), half);
  const bool at_once = ctx.phase == kAllPhases;
  if (has(half, Half::input) && (at_once || !t.dx.empty())) {  // dx is the sum's gradient
    check("dx", t.dx, config_.dtype, t.saved.back().shape);
    check("skip", ctx.skip, config_.dtype, t.dx.shape);
    check("gradient of skip", t.dskip, config_.dtype, t.dx.shape);
    ctx.math.scale(ctx.stream, t.dskip, t.dx, t.weights[weight_], Accumulate::no);
    ctx.math.norm_weight_grad(ctx.stream, t.carried.back(), {}, t.dx, ctx.skip, {}, {}, Accumulate::no);
  }
  if (has(half, Half::weight) && (at_once || !t.gradients[weight_].empty()))
    ctx.math.convert(ctx.stream, t.gradients[weight_], t.carried.back(), t.accumulate);
}

void Skip::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y,
                       CacheViews cache_views, std::int64_t position) const {
  check_decode(ctx, weights, cache_views, position);
  if (ctx.phase != kAllPhases && x.empty()) return inner_->decode_step(ctx, of_inner(weights), x, y, cache_views, position);
  check("x", x, config_.dtype, {1, config_.hidden});
  const auto inner_bytes = round_up(inner_->scratch_bytes(ctx.shape), ScratchArena::kAlignBytes);
  const auto words = static_cast<std::int64_t>(inner_bytes / 4);
  if (ctx.scratch.elements() < words) fail("scratch is too small");
  ScratchArena arena(part(ctx.scratch, words, {ctx.scratch.elements() - words}));
  const auto sum = arena.take(config_.dtype, {1, config_.hidden});
  add_skip(ctx, weights[weight_], sum, x);
  inner_->decode_step(ctx, of_inner(weights), sum, y, cache_views, position);
}

}  // namespace terrace::layers
