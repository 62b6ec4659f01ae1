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
  [[nodiscard]] std::vector<Phase> phases(LayerCall call, BatchShape shape) const override;
  void forward(LayerContext& ctx, const LayerTensors& t) const override;
  void backward(LayerContext& ctx, const LayerTensors& t, Half half) const override;
  void decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                   std::int64_t position) const override;

 private:
  // The scratch of each phase.
  struct Up {
    Up(const Mlp& block, ScratchArena& arena, std::int64_t rows);
    TensorView normed;
    Projection::Whole weights;
  };
  struct Activated {
    Activated(const Mlp& block, ScratchArena& arena, std::int64_t rows);
    TensorView activated;  // or its gradient
  };
  struct UpInput {
    UpInput(const Mlp& block, ScratchArena& arena, std::int64_t rows);
    Projection::Whole weights;
  };
  struct UpWeight {
    UpWeight(const Mlp& block, ScratchArena& arena, std::int64_t rows);
    TensorView normed, statistics;
    Projection::Whole gradient;
  };
  struct Decode {
    Decode(const Mlp& block, ScratchArena& arena, std::int64_t rows);
    TensorView statistics, up;
  };

  void run_up(LayerContext& ctx, std::span<const TensorView> weights, TensorView up, TensorView x, TensorView statistics,
              ScratchArena arena) const;
  void run_down(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView up, TensorView x,
                ScratchArena arena) const;
  void input_half(LayerContext& ctx, const LayerTensors& t) const;
  void weight_half(LayerContext& ctx, const LayerTensors& t) const;

  Norm norm_;
  Projection up_, down_;
};

}  // namespace terrace::layers
