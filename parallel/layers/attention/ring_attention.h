// Attention over positions that lie on several ranks, by a ring of keys and values (ring.h).
//
// Owner, threads, errors: as transformer_layer.h. It cannot generate.
#pragma once

#include <terrace/parallel/layers/attention/attention.h>
#include <terrace/parallel/layers/attention/ring.h>

namespace terrace::layers {

class RingAttention final : public Attention {
 public:
  RingAttention(const Transformer& config, std::int64_t block);

 private:
  [[nodiscard]] double middle_flops(BatchShape shape) const override { return ring_.forward_flops(shape); }
  void save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const override;
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dqkv, TensorView dattended) const override;
  [[nodiscard]] std::vector<TensorSpec> middle_work(LayerCall call, BatchShape shape) const override;
  [[nodiscard]] std::vector<std::uint32_t> begins_middle(LayerCall call) const override { return ring_.begins(call); }
  void describe_middle(CallSteps& steps, LayerCall call, BatchShape shape) const override;
  [[nodiscard]] static Ring::Tensors tensors(const LayerTensors& t) {
    return {t.saved[kInResult], t.saved[kLogSumExp], t.saved[kAttended], t.work};
  }

  const Ring ring_;
};

}  // namespace terrace::layers
