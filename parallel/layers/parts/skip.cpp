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

Phase Skip::phase_around(Phase phase, LayerCall call, const Around& around) const {
  for (auto* const params : {&phase.weights, &phase.gradients})
    for (auto& p : *params)
      if (p.param >= weight_) ++p.param;
  if (around.adds || phase.dx) phase.weights.push_back({weight_});
  if (phase.x && !around.adds) {  // reads the saved sum instead
    phase.x = false;
    phase.saved = phase.saved.value_or(Access::read);
  }
  if (around.adds && call == LayerCall::decode) phase.scratch_bytes = decode_bytes();
  if (phase.dx) phase.carried = phase.carried.value_or(Access::update);
  if (around.ends) {  // the last phase is of the weight half
    phase.gradients.push_back({weight_});
    phase.carried = phase.carried.value_or(Access::read);
  }
  return phase;
}

void Skip::describe(CallSteps& steps, LayerCall call, BatchShape shape) const {
  begin(steps, call, {.x = call != LayerCall::backward});
  const bool backward = call == LayerCall::backward;
  auto inner = inner_->described(call, shape);
  for (const auto& room : inner.work()) static_cast<void>(steps.room(room));
  auto& all = inner.steps();
  for (std::size_t i = 0; is_in_tiles() && i < all.size(); ++i) {
    const bool last = i + 1 == all.size();
    const Around around{adds(all[i].phase, call, i == 0), all[i].phase.dx.has_value(), backward && last};
    auto phase = phase_around(all[i].phase, call, around);
    steps.compute(std::move(phase), [=, this, run = std::move(all[i].run)](LayerContext& ctx, const LayerTensors& t) {
      this->run(ctx, t, call, run, around);
    });
  }
  if (is_in_tiles() || all.empty()) return;
  const Around whole{.adds = !backward, .writes_dx = backward, .ends = backward};
  steps.compute([=, this, inner = std::move(inner)](LayerContext& ctx, const LayerTensors& t) {
    run(
        ctx, t, call, [&](LayerContext& c, const LayerTensors& own) { inner.run(c, own); }, whole);
  });
}

void Skip::run(LayerContext& ctx, const LayerTensors& t, LayerCall call, const CallSteps::Run& inner,
               const Around& around) const {
  if (call == LayerCall::decode) return decode(ctx, t, inner, around.adds);
  if (around.adds) add_skip(ctx, t.weights[weight_], t.saved.back(), t.x);
  inner(ctx, inner_tensors(t));
  if (around.writes_dx && has(ctx.half, Half::input)) skip_grad(ctx, t);
  if (around.ends && has(ctx.half, Half::weight)) weight_grad(ctx, t);
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

// dx is the gradient of the sum.
void Skip::skip_grad(LayerContext& ctx, const LayerTensors& t) const {
  check("dx", t.dx, config_.dtype, t.saved.back().shape);
  check("skip", ctx.skip, config_.dtype, t.dx.shape);
  check("gradient of skip", t.dskip, config_.dtype, t.dx.shape);
  ctx.math.scale(ctx.stream, t.dskip, t.dx, t.weights[weight_], Accumulate::no);
  ctx.math.norm_weight_grad(ctx.stream, t.carried.back(), {}, t.dx, ctx.skip, {}, {}, Accumulate::no);
}

void Skip::weight_grad(LayerContext& ctx, const LayerTensors& t) const {
  const auto& gradient = t.gradients[weight_];
  if (!gradient.empty()) ctx.math.convert(ctx.stream, gradient, t.carried.back(), t.accumulate);
}

void Skip::decode(LayerContext& ctx, const LayerTensors& t, const CallSteps::Run& inner, bool adds) const {
  auto own = t;
  own.weights = of_inner(t.weights);
  if (!adds) return inner(ctx, own);
  const auto inner_bytes = round_up(inner_->scratch_bytes(ctx.shape), ScratchArena::kAlignBytes);
  const auto words = static_cast<std::int64_t>(inner_bytes / 4);
  if (ctx.scratch.elements() < words) fail("scratch is too small");
  ScratchArena arena(part(ctx.scratch, words, {ctx.scratch.elements() - words}));
  own.x = arena.take(config_.dtype, {1, config_.hidden});
  add_skip(ctx, t.weights[weight_], own.x, t.x);
  inner(ctx, own);
}

}  // namespace terrace::layers
