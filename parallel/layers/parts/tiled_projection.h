// A projection whose matrices are cut into tiles of their results; each tile is a unit. A call computes one tile's columns of
// the whole result, or what their gradients need, with 1/T of the weights (ZeRO-Infinity's memory-centric tiling, Rajbhandari
// et al. 2021, section 5.1.3).
//
// Owner, threads, errors: as Projection.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/layers/parts/projection.h>

namespace terrace::layers {

class TiledProjection {
 public:
  // The bias of all results is small and not cut: it is a parameter outside the tiles, or one for each tensor. If the product
  // is a part of a sum, only one tensor rank adds the bias.
  struct Bias {
    std::vector<std::uint32_t> params = {};
    bool added = true;
  };
  // `whole` is declared in `params`, without a bias.
  TiledProjection(std::vector<ParamSpec>& params, const Projection& whole, std::uint32_t tiles, std::uint32_t unit, Bias bias,
                  DType dtype);

  void name_tile(std::vector<PhaseParam>& of_phase, std::uint32_t tile) const;  // and the bias
  [[nodiscard]] std::uint64_t scratch_bytes(std::int64_t rows) const;           // of any of the calls
  // y has all columns; those of the tile are written or added.
  void forward(LayerContext& ctx, std::span<const TensorView> weights, std::uint32_t tile, TensorView y, TensorView x,
               Accumulate accumulate, ScratchArena arena) const;
  // Adds the tile's part to dx, which the first tile writes.
  void input_grad(LayerContext& ctx, std::span<const TensorView> weights, std::uint32_t tile, TensorView dx, TensorView dy,
                  ScratchArena arena) const;
  void weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, std::uint32_t tile, TensorView dy, TensorView x,
                   Accumulate accumulate, ScratchArena arena) const;

 private:
  struct Scratch {
    Scratch(const TiledProjection& of, ScratchArena& arena, std::int64_t rows, bool of_gradient);
    TensorView columns;  // the tile's columns, of the result or of its gradient
    TensorView bias;     // of the tile or its gradient, if it comes from several tensors
    Projection::Whole weights;
  };
  // Calls move(first column in the whole, first column in the tile, count) for each run of the tile's columns.
  template <class Move>
  void each_run(std::uint32_t tile, Move&& move) const;
  void take(LayerContext& ctx, std::uint32_t tile, const TensorView& columns, const TensorView& whole) const;
  // Calls use(the tile's part of a bias, its first column in the tile) for each tensor.
  template <class Use>
  void each_bias(std::span<const TensorView> tensors, std::uint32_t tile, Use&& use) const;
  [[nodiscard]] TensorView bias_of(LayerContext& ctx, std::span<const TensorView> weights, std::uint32_t tile,
                                   const TensorView& place) const;
  void bias_grad(LayerContext& ctx, std::span<const TensorView> gradients, std::uint32_t tile, const Scratch& scratch,
                 Accumulate accumulate) const;

  Projection tile_;
  std::vector<std::int64_t> widths_;  // width of each tensor's results, over all tiles
  Bias bias_;
  DType dtype_;
};

}  // namespace terrace::layers
