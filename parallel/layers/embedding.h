// The first layer: tokens → x, plus a learned position for each place of a sequence with learned positions.
//
// Owner, threads, errors: as transformer_layer.h. A token outside the vocabulary fails the stream.
#pragma once

#include <terrace/parallel/layers/transformer_layer.h>

namespace terrace::layers {

class Embedding final : public TransformerLayer {
 public:
  explicit Embedding(const Transformer& config);
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape) const override { return {}; }
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape) const override { return {}; }
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  [[nodiscard]] double forward_flops(BatchShape) const override { return 0; }
  void forward(LayerContext& ctx, const LayerTensors& t) const override;
  void backward(LayerContext& ctx, const LayerTensors& t, Half half) const override;
  void decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                   std::int64_t position) const override;

 private:
  [[nodiscard]] TensorView positions(std::span<const TensorView> tensors) const;
  // The rows of the table that have a token, and the tokens as numbers of these rows; −1: another tensor rank has the row.
  [[nodiscard]] TensorView rows(std::span<const TensorView> tensors) const;
  [[nodiscard]] TensorView tokens_here(LayerContext& ctx) const;
};

}  // namespace terrace::layers
