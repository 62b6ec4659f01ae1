// Attention over positions that lie on several ranks, by a ring of keys and values (ring.h).
//
// Owner, threads, errors: as transformer_layer.h. It cannot generate.
#pragma once

#include <terrace/parallel/layers/attention/attention.h>
#include <terrace/parallel/layers/attention/ring.h>

namespace terrace::layers {

class RingAttention final : public Attention {
 public:
  RingAttention(const Transformer& config, std::int64_t block) : Attention(config, block) {}

 private:
  [[nodiscard]] double middle_flops(BatchShape shape) const override { return ring_.forward_flops(shape); }
  [[nodiscard]] std::vector<TensorSpec> middle_work(LayerCall call, BatchShape shape) const override {
    return ring_.work(call, shape);
  }
  [[nodiscard]] std::vector<std::uint32_t> begins_middle(LayerCall call) const override { return ring_.begins(call); }
  void save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const override {
    rotate_slice(ctx, qkv, false);
    ring_.begin(ctx, tensors(t));
  }
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView, TensorView dattended) const override {
    ctx.math.convert(ctx.stream, ring_.gradient(ctx.shape, tensors(t)), dattended);
    ring_.begin(ctx, tensors(t));
  }
  void describe_middle(CallSteps& steps, LayerCall call, BatchShape shape) const override {
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
  [[nodiscard]] static Ring::OfRing tensors(const LayerTensors& t) {
    return {t.saved[kInResult], t.saved[kLogSumExp], t.saved[kAttended], t.work};
  }

  const Ring ring_{config_, window_, heads_here(), heads_here(), 0};
};

}  // namespace terrace::layers
