// y = x + down(activation(up(norm(x)))), the second half of a transformer block. With SwiGLU, gate and up are one product.
//
// Saved for the backward: the norm's statistics and the activation's input; the rest is recomputed.
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <terrace/parallel/layers/transformer_layer.h>

namespace terrace::layers {

class Mlp final : public TransformerLayer {
 public:
  Mlp(const Transformer& config, std::int64_t block);
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape shape) const override;
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape shape) const override;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  [[nodiscard]] double forward_flops(BatchShape shape) const override;
  void forward(LayerContext& ctx, const LayerTensors& t) const override;
  void backward(LayerContext& ctx, const LayerTensors& t, Half half) const override;
  void decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                   std::int64_t position) const override;

 private:
  // The scratch of each kind of call.
  struct Forward {
    Forward(const Mlp& block, ScratchArena& arena, std::int64_t rows);
    TensorView normed, activated;
    Projection::Whole up_weights;
  };
  struct InputHalf {
    InputHalf(const Mlp& block, ScratchArena& arena, std::int64_t rows);
    TensorView dactivated;
    Projection::Whole up_weights;
  };
  struct WeightHalf {
    WeightHalf(const Mlp& block, ScratchArena& arena, std::int64_t rows);
    TensorView activated, normed, statistics;
    Projection::Whole up_gradient;
  };
  struct Decode {
    Decode(const Mlp& block, ScratchArena& arena);
    TensorView statistics, up;
  };

  void run(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, TensorView statistics,
           TensorView up, ScratchArena& arena) const;
  void input_half(LayerContext& ctx, const LayerTensors& t, ScratchArena arena) const;
  void weight_half(LayerContext& ctx, const LayerTensors& t, ScratchArena arena) const;
  [[nodiscard]] Activation kind() const;

  Norm norm_;
  Projection up_, down_;
};

}  // namespace terrace::layers
