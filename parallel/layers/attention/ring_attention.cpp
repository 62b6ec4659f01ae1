#include <terrace/parallel/layers/attention/ring_attention.h>

#include <algorithm>

namespace terrace::layers {

RingAttention::RingAttention(const Transformer& config, std::int64_t block)
    : Attention(config, block),
      ring_(config, window_, {config.heads_here(), config.kv_heads_here()}, {config.heads_here(), config.kv_heads_here()}, 0) {}

std::vector<TensorSpec> RingAttention::middle_work(LayerCall call, BatchShape shape) const { return ring_.work(call, shape); }

void RingAttention::describe_middle(CallSteps& steps, LayerCall call, BatchShape shape) const {
  ring_.describe(steps, call, shape, tensors);
  if (call == LayerCall::forward) return;
  steps.compute(
      {.half = Half::input, .carried = Access::overwrite, .work = ring_.ends(shape), .scratch_bytes = ring_.end_bytes(shape)},
      [this](LayerContext& ctx, const LayerTensors& t) {
        ScratchArena arena(ctx.scratch);
        ring_.end(ctx, ctx.shape, tensors(t), t.carried[kDin], arena);
        rotate_slice(ctx, t.carried[kDin], true);
      });
}

void RingAttention::save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const {
  rotate_slice(ctx, qkv, false);
  ring_.begin(ctx, tensors(t));
}

void RingAttention::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView, TensorView dattended) const {
  ctx.math.convert(ctx.stream, ring_.gradient(ctx.shape, tensors(t)), dattended);
  ring_.begin(ctx, tensors(t));
}

}  // namespace terrace::layers
