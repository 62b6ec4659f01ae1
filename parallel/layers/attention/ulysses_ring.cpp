#include <terrace/parallel/layers/attention/ulysses_ring.h>

namespace terrace::layers {

UlyssesRing::UlyssesRing(const Transformer& config, std::int64_t block)
    : Ulysses(config, block), ring_(config, window_, deal_.of(rank_), deal_.of(0), kOfPositions + 1) {}

std::vector<TensorSpec> UlyssesRing::middle_work(LayerCall call, BatchShape shape) const {
  auto all = Ulysses::middle_work(call, shape);
  const auto more = ring_.work(call, place(shape));
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void UlyssesRing::describe_heads(CallSteps& steps, LayerCall call, BatchShape shape) const {
  const bool forward = call == LayerCall::forward;
  const auto half = forward ? Half::both : Half::input;
  Phase first{.half = half, .saved = forward ? Access::update : Access::read, .work = {{kOfHeads, Access::read}}};
  for (const auto tensor : ring_.begins(call)) first.work.push_back({tensor, Access::overwrite});
  steps.compute(std::move(first), [=, this](LayerContext& ctx, const LayerTensors& t) { order(ctx, t, call); });

  ring_.describe(steps, call, place(shape), [=, this](const LayerTensors& t) { return tensors(shape, t); });

  const TensorSpec gradient{"", config_.dtype, {place(shape).tokens(), qkv_row(0)}};
  const auto end_bytes = scratch_of({gradient}) + ring_.end_bytes(place(shape));
  Phase last{.half = half, .work = {{kToPositions, Access::overwrite}}, .scratch_bytes = forward ? 0 : end_bytes};
  if (forward) {
    last.saved = Access::read;
  } else {
    for (const auto& used : ring_.ends(place(shape))) last.work.push_back(used);
  }
  steps.compute(std::move(last), [=, this](LayerContext& ctx, const LayerTensors& t) { pack(ctx, t, call); });
}

Ring::OfRing UlyssesRing::tensors(BatchShape shape, const LayerTensors& t) const {
  return {of_heads(shape, t.saved[kInResult], qkv_row(rank_)), log_sum_exp(shape, t),
          of_heads(shape, t.saved[kAttended], attended_row(rank_)), t.work};
}

void UlyssesRing::order(LayerContext& ctx, const LayerTensors& t, LayerCall call) const {
  const auto of_ring = tensors(ctx.shape, t);
  const bool forward = call == LayerCall::forward;
  const auto came = of_heads(ctx.shape, t.work[kOfHeads], forward ? qkv_row(rank_) : attended_row(rank_));
  order_positions(ctx, came, forward ? of_ring.qkv : ring_.gradient(place(ctx.shape), of_ring), Way::unpack);
  ring_.begin(ctx, of_ring);
}

void UlyssesRing::pack(LayerContext& ctx, const LayerTensors& t, LayerCall call) const {
  const auto of_ring = tensors(ctx.shape, t);
  const bool forward = call == LayerCall::forward;
  const auto row = forward ? attended_row(rank_) : qkv_row(rank_);
  ScratchArena arena(ctx.scratch);
  auto result = of_ring.attended;
  if (!forward) {
    result = arena.take(config_.dtype, {place(ctx.shape).tokens(), row});
    ring_.end(ctx, place(ctx.shape), of_ring, result, arena);
  }
  order_positions(ctx, of_heads(ctx.shape, t.work[kToPositions], row), result, Way::pack);
}

}  // namespace terrace::layers
