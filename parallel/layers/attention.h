// y = x + output(attention(rotary(qkv(norm(x))))), the first half of a transformer block; rotary only with such positions.
//
// Saved for the backward: the results of products (q, k, v after the rotation, the attention's result) and the statistics of
// norm and softmax. The norm's result is recomputed, which costs one pass over x.
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <terrace/parallel/layers/transformer_layer.h>

namespace terrace::layers {

class Attention final : public TransformerLayer {
 public:
  Attention(const Transformer& config, std::int64_t block);
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape shape) const override;
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape shape) const override;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  [[nodiscard]] double forward_flops(BatchShape shape) const override;
  [[nodiscard]] std::vector<Phase> phases(LayerCall call, BatchShape shape) const override;
  void forward(LayerContext& ctx, const LayerTensors& t) const override;
  void backward(LayerContext& ctx, const LayerTensors& t, Half half) const override;
  // Keys and values, each [kv_heads, capacity, head_dim].
  [[nodiscard]] std::vector<TensorSpec> cache(std::int64_t capacity) const override;
  void decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                   std::int64_t position) const override;

 private:
  // The scratch of each phase.
  struct Qkv {
    Qkv(const Attention& block, ScratchArena& arena, std::int64_t rows);
    TensorView normed;
    Projection::Whole weights;
  };
  struct Attended {
    Attended(const Attention& block, ScratchArena& arena, std::int64_t rows);
    TensorView gradient;
  };
  struct QkvInput {
    QkvInput(const Attention& block, ScratchArena& arena, std::int64_t rows);
    Projection::Whole weights;
  };
  struct QkvWeight {
    QkvWeight(const Attention& block, ScratchArena& arena, std::int64_t rows);
    TensorView normed, statistics;
    Projection::Whole gradient;
  };
  struct Decode {
    Decode(const Attention& block, ScratchArena& arena, std::int64_t rows);
    TensorView normed, statistics, qkv, attended;
    Projection::Whole qkv_weights;
  };

  void input_half(LayerContext& ctx, const LayerTensors& t) const;
  void weight_half(LayerContext& ctx, const LayerTensors& t) const;
  // Rotates q and k, which lie side by side in a row, to (or back from) their positions, if the transformer has rotary ones.
  void rotate(LayerContext& ctx, TensorView qkv, std::int64_t first_position, bool inverse) const;
  [[nodiscard]] AttentionShape attention_shape(BatchShape shape) const;

  Norm norm_;
  Projection qkv_, output_;
};

}  // namespace terrace::layers
