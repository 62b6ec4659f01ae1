// A skip connection in front of a residual branch: the branch reads x + weight · skip, where each column of the skip has a
// learned weight, which begins at 1.
//
// The sum is saved for the backward as the branch's input. The input half, which has the skip, computes the whole gradient of
// the weight and carries it to the weight half. The weight is in the same run of chunks as the weights of `out` or, in tiles,
// as the weights outside the tiles.
//
// The phases are those of the branch: the first one of a forward adds the skip, the one that writes the gradient of the input
// also writes that of the skip, and the last one of a backward writes the gradient of the weight.
#include <utility>

#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {

void ResidualBranch::declare_skip(const std::string& name, std::uint32_t unit) {
  skip_weight_ = static_cast<std::uint32_t>(params_.size());
  params_.push_back({.name = weight_name(name), .shape = {config_.hidden}, .init = {InitKind::ones}, .decay = 0, .unit = unit});
}

// Generation has no saved tensors: the sum is the first tensor in scratch.
std::uint64_t ResidualBranch::sum_bytes() const {
  return skips_from_ ? scratch_of({{"", config_.dtype, {1, config_.hidden}}}) : 0;
}

void ResidualBranch::put_skip_before(CallSteps& steps, LayerCall call) const {
  const bool decode = call == LayerCall::decode, backward = call == LayerCall::backward;
  auto& all = steps.steps();
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& [phase, run] = all[i];
    const bool at_once = decode && in_.tiles() == 1;
    const bool adds = at_once || (phase.x && (decode || (!backward && i == 0))), writes_dx = phase.dx.has_value(),
               ends = backward && i + 1 == all.size();
    if (adds || writes_dx) phase.weights.push_back({skip_weight_});
    if (phase.x && !adds) {  // reads the saved sum instead
      phase.x = false;
      phase.saved = phase.saved.value_or(Access::read);
    }
    if (decode && adds) phase.scratch_bytes += sum_bytes();
    if (writes_dx) phase.carried = phase.carried.value_or(Access::update);
    if (ends) {  // the last phase is of the weight half
      phase.gradients.push_back({skip_weight_});
      phase.carried = phase.carried.value_or(Access::read);
    }
    if (!run) continue;
    run = [=, this, inner = std::move(run)](LayerContext& ctx, const LayerTensors& t) {
      auto own = t;
      if (decode) return decode_with_skip(ctx, own, inner, adds);
      own.x = t.saved.back();
      if (adds) add_skip(ctx, t.weights[skip_weight_], own.x, t.x);
      inner(ctx, own);
      if (writes_dx && has(ctx.half, Half::input)) skip_grad(ctx, t);
      if (const auto gradient = ends && has(ctx.half, Half::weight) ? t.gradients[skip_weight_] : TensorView{};
          !gradient.empty())
        ctx.math.convert(ctx.stream, gradient, t.carried.back(), t.accumulate);
    };
  }
}

void ResidualBranch::add_skip(LayerContext& ctx, TensorView weight, TensorView sum, TensorView x) const {
  check("skip", ctx.skip, config_.dtype, sum.shape);
  ctx.math.convert(ctx.stream, sum, x);
  ctx.math.scale(ctx.stream, sum, ctx.skip, weight, Accumulate::yes);
}

// dx is the gradient of the sum.
void ResidualBranch::skip_grad(LayerContext& ctx, const LayerTensors& t) const {
  check("dx", t.dx, config_.dtype, t.saved.back().shape);
  check("skip", ctx.skip, config_.dtype, t.dx.shape);
  check("gradient of skip", t.dskip, config_.dtype, t.dx.shape);
  ctx.math.scale(ctx.stream, t.dskip, t.dx, t.weights[skip_weight_], Accumulate::no);
  ctx.math.norm_weight_grad(ctx.stream, t.carried.back(), {}, t.dx, ctx.skip, {}, {}, Accumulate::no);
}

void ResidualBranch::decode_with_skip(LayerContext& ctx, LayerTensors& t, const CallSteps::Run& inner, bool adds) const {
  if (!adds) return inner(ctx, t);
  ScratchArena arena(ctx.scratch);
  const auto sum = arena.take(config_.dtype, {1, config_.hidden});
  add_skip(ctx, t.weights[skip_weight_], sum, t.x);
  t.x = sum;
  auto rest = ctx;
  const auto words = static_cast<std::int64_t>(sum_bytes() / 4);
  rest.scratch = part(ctx.scratch, words, {ctx.scratch.elements() - words});
  inner(rest, t);
}

}  // namespace terrace::layers
