// A projection whose matrices are cut into tiles of their results, each a unit: a call computes one tile's columns of the whole
// result, or what follows from them, with 1/T of the weights (ZeRO-Infinity's memory-centric tiling, Rajbhandari et al. 2021,
// section 5.1.3).
//
// Owner, threads, errors: as Projection.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <terrace/parallel/layers/projection.h>

namespace terrace::layers {

class TiledProjection {
 public:
  // The bias of all results is small and whole: a parameter that lies elsewhere, and that one tensor rank adds if the product
  // is a part of a sum.
  struct Bias {
    std::optional<std::uint32_t> param = {};
    bool added = true;
  };
  // `whole`: declared in `params`, without a bias.
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
    TensorView columns;  // the tile's, of the result or of its gradient
    Projection::Whole weights;
  };
  // Between the tile's columns and their places in the whole: move(whole's first column, tile's first column, count).
  template <class Move>
  void each_run(std::uint32_t tile, Move&& move) const;
  void take(LayerContext& ctx, std::uint32_t tile, const TensorView& columns, const TensorView& whole) const;
  [[nodiscard]] TensorView bias_of(std::span<const TensorView> tensors, std::uint32_t tile) const;

  Projection tile_;
  std::vector<std::int64_t> widths_;  // of each tensor's results, whole
  Bias bias_;
  DType dtype_;
};

}  // namespace terrace::layers
