// The MLP in tiles of its inner features: y = x + Σ down_t(activation(up_t(norm(x)))). A phase uses one tile of both products'
// weights and has the inner activations of one tile, so both are 1/T of the whole layer's. (ZeRO-Infinity's tiled linear
// layers, Rajbhandari et al. 2021, section 5.1.3, keep all activations; attention uses them, residual_tiles.cpp.)
//
// With tiles of rows (Arctic Long Sequence Training, Bekman et al. 2025) a phase computes the micro-batch some rows at a time,
// so inner activations are 1/R of all; the weights need as much memory as without. Gradients of weights are sums over the tiles
// of rows, added one after the other, like those of the head's slices.
//
// Nothing inside is saved for the backward: each tile computes its part of `up` again, five products instead of four. Without
// tiles of features, the result of `down` is one product; with T tiles it is a sum of T products, each rounded to the dtype of
// activations.
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <optional>

#include <terrace/parallel/layers/parts/low_rank.h>
#include <terrace/parallel/layers/parts/result_norm.h>
#include <terrace/parallel/layers/parts/transformer_layer.h>

namespace terrace::layers {

class TiledMlp final : public TransformerLayer {
 public:
  TiledMlp(const Transformer& config, std::int64_t block);
  [[nodiscard]] bool adds_up() const override { return config_.tensor().ranks > 1 && result_norm_; }
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape shape) const override;
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape shape) const override;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  [[nodiscard]] double forward_flops(BatchShape shape) const override;
  // With a norm of the result: the norm's input, to which each tile adds.
  [[nodiscard]] std::vector<TensorSpec> cache(std::int64_t capacity) const override;
  void describe(CallSteps& steps, LayerCall call, BatchShape shape) const override;

 private:
  // The scratch of a tile of rows; the statistics are those of all rows.
  struct Scratch {
    Scratch(const TiledMlp& layer, ScratchArena& arena, std::int64_t rows);
    TensorView statistics, normed, up, activated;
    Projection::Whole weights;
    LowRank::Room up_adapters, down_adapters;
  };
  struct BackwardScratch : Scratch {
    BackwardScratch(const TiledMlp& layer, ScratchArena& arena, std::int64_t rows);
    TensorView dup;
    Projection::Whole gradient;
    LowRank::GradientRoom up_gradients, down_gradients;
  };
  // The same scratch for fewer rows.
  [[nodiscard]] static BackwardScratch first_rows(const BackwardScratch& scratch, std::int64_t count);
  [[nodiscard]] static Scratch first_rows(Scratch scratch, std::int64_t count);
  [[nodiscard]] std::int64_t rows_of_a_tile(std::int64_t rows) const {
    return ceil_div(rows, std::int64_t{config_.mlp_row_tiles});
  }
  template <class Use>
  void each_row_tile(std::int64_t rows, Use&& use) const {
    for (std::uint32_t r = 0; r < config_.mlp_row_tiles; ++r)
      if (const auto block = block_of(rows, static_cast<int>(r), static_cast<int>(config_.mlp_row_tiles)); block.count > 0)
        use(block);
  }
  // A bias is small, so it is not cut; it is beside the norm.
  struct Bias {
    std::optional<std::uint32_t> param;
    std::int64_t width = 0;  // of a tile
    [[nodiscard]] TensorView of(std::span<const TensorView> tensors, std::uint32_t tile) const {
      return param ? part(tensors[*param], tile * width, {width}) : TensorView{};
    }
  };
  Bias add_bias(const std::string& prefix, const ProjectionParts& parts, std::int64_t width, std::int64_t of_tile,
                const TensorSplit& split);
  // The norm, the biases and the adapters, which a phase uses beside a tile.
  [[nodiscard]] std::vector<PhaseParam> small_params() const;
  [[nodiscard]] std::vector<PhaseParam> params_with(std::uint32_t tile) const;
  [[nodiscard]] Phase forward_phase(LayerCall call, BatchShape shape, std::uint32_t tile) const;
  [[nodiscard]] Phase backward_phase(BatchShape shape, std::uint32_t tile) const;
  // Adds the products of one tile to `result`, which is y without a norm of the result.
  void add_tile(LayerContext& ctx, const LayerTensors& t, TensorView result, TensorView statistics, const Scratch& scratch,
                std::uint32_t tile) const;
  [[nodiscard]] bool is_last(std::uint32_t tile) const { return tile + 1 == tiles(); }
  // Whether the tile's phase of a forward also norms the result. Tensor ranks add it up first.
  [[nodiscard]] bool norms_with(std::uint32_t tile) const { return result_norm_ && is_last(tile) && !adds_up(); }
  void make_up(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, const NormStatistics& statistics,
               const Scratch& scratch, std::uint32_t tile) const;
  // The gradient of the result: dy itself without a norm of the result.
  [[nodiscard]] TensorView dresult(const LayerTensors& t) const;
  void down_bias_grad(LayerContext& ctx, const LayerTensors& t) const;
  void backward_of_tile(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile) const;
  void backward_of_rows(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile, const BackwardScratch& scratch,
                        Block rows) const;
  [[nodiscard]] std::uint32_t tiles() const { return config_.mlp_tiles; }

  Norm norm_;
  Bias up_bias_, down_bias_;
  Projection in_, out_;  // products of one tile
  ResultNorm result_norm_;
  LowRank in_adapters_, out_adapters_;
};

}  // namespace terrace::layers
