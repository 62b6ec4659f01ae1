// A layer with a skip connection in front of it: it reads x + weight · skip, where each column of the skip has a learned
// weight, which begins at 1.
//
// The sum is saved for the backward as the inner layer's input. The input half, which has the skip, computes the whole gradient
// of the weight and carries it to the weight half. The weight is in the same run of chunks as the inner layer's weights or, if
// that layer has tiles, as its weights outside the tiles.
//
// A call runs at once or, if the inner layer is in tiles, in the inner layer's phases: the first phase of a forward adds the
// skip, and the phase that writes the gradient of the input also writes that of the skip.
//
// Owner, threads, errors: as transformer_layer.h. Owns the inner layer.
#pragma once

#include <memory>

#include <terrace/parallel/layers/parts/transformer_layer.h>

namespace terrace::layers {

class Skip final : public TransformerLayer {
 public:
  // `from`: the number of the layer whose result it adds; `block`: the inner layer's, for the weight's name.
  Skip(const Transformer& config, std::int64_t block, std::uint32_t from, std::unique_ptr<TransformerLayer> inner);
  [[nodiscard]] std::optional<std::uint32_t> skips_from() const override { return from_; }
  [[nodiscard]] bool keeps_input() const override { return false; }
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape shape) const override;
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape shape) const override;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  [[nodiscard]] double forward_flops(BatchShape shape) const override { return inner_->forward_flops(shape); }
  void describe(CallSteps& steps, LayerCall call, BatchShape shape) const override;
  [[nodiscard]] std::vector<TensorSpec> cache(std::int64_t capacity) const override { return inner_->cache(capacity); }

 private:
  // Whether a phase of the inner layer begins with the sum.
  [[nodiscard]] static bool adds(const Phase& inner, LayerCall call, bool first) {
    return inner.x && (call == LayerCall::decode || (call == LayerCall::forward && first));
  }
  // What a step of the inner layer has around it: the sum before it, the gradient of the skip, and that of the weight.
  struct Around {
    bool adds = false, writes_dx = false, ends = false;
  };
  // What an inner phase uses, as a phase of this layer.
  [[nodiscard]] Phase phase_around(Phase phase, LayerCall call, const Around& around) const;
  void run(LayerContext& ctx, const LayerTensors& t, LayerCall call, const CallSteps::Run& inner, const Around& around) const;
  void add_skip(LayerContext& ctx, TensorView weight, TensorView sum, TensorView x) const;
  void skip_grad(LayerContext& ctx, const LayerTensors& t) const;
  void weight_grad(LayerContext& ctx, const LayerTensors& t) const;
  void decode(LayerContext& ctx, const LayerTensors& t, const CallSteps::Run& inner, bool adds) const;
  // of_inner(): the inner layer's weights, or their gradients. inner_tensors(): the tensors of a call for the inner layer: all
  // saved and carried ones except the last, which is the skip's.
  [[nodiscard]] std::span<const TensorView> of_inner(std::span<const TensorView> weights) const;
  [[nodiscard]] LayerTensors inner_tensors(const LayerTensors& t) const;
  [[nodiscard]] bool is_in_tiles() const { return config_.attention_tiles > 1; }
  [[nodiscard]] std::uint64_t decode_bytes() const;

  const std::uint32_t from_;
  const std::unique_ptr<TransformerLayer> inner_;
  std::uint32_t weight_ = 0;  // its number among the parameters: the first or the last one
};

}  // namespace terrace::layers
