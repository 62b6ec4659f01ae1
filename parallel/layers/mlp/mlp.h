// y = x + down(activation(up(norm(x)))), the second half of a transformer block. With SwiGLU, gate and up are one product.
//
// The activation's result is not saved for the backward: it is recomputed from its input.
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <terrace/parallel/layers/branch/residual_branch.h>

namespace terrace::layers {

class Mlp final : public ResidualBranch {
 public:
  Mlp(const Transformer& config, std::int64_t block);
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  [[nodiscard]] double forward_flops(BatchShape shape) const override;

 private:
  static Parts parts_of(const Transformer& config);
  void describe_decode(CallSteps& steps) const override;
  TensorView middle(LayerContext& ctx, const LayerTensors& t, ScratchArena& arena) const override;
  [[nodiscard]] bool saves_middle() const override { return false; }
  void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dup, TensorView dactivated) const override;
  [[nodiscard]] TensorView activated(LayerContext& ctx, TensorView up, ScratchArena& arena) const;

  struct Decode {
    Decode(const Mlp& layer, ScratchArena& arena, std::int64_t rows);
    TensorView statistics, up;
  };
};

}  // namespace terrace::layers
