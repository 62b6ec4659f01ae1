// How a model is split over ranks that compute the same micro-batches together: tensor parallelism (Shoeybi et al. 2019), and
// with `sequence` also sequence parallelism (Korthikanti et al. 2022).
//
// Each rank has a part of every large matrix. What a layer computes of its result and of the gradient of its input is this
// rank's part of a sum over the ranks; its input and the gradient of its result are whole. Phases at the edges of the layer's
// call make the sums (tensor_edges.h). With `sequence` a rank keeps only its share of the rows of an activation between layers:
// the sum is a reduce-scatter, and an all-gather makes the rows whole again before the layer computes with them.
//
// The ranks of a group are neighbours, the innermost axes of the mesh (mesh.h).
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>

namespace terrace {

// How the ranks are arranged. In a row (1D), each has some columns of every matrix. In a grid, each has a block of it:
//
//   2D    side × side ranks (SUMMA, van de Geijn and Watts 1997; Optimus, Xu et al. 2021)
//   2.5D  `depth` such grids, with the same blocks and different sequences (Tesseract, Wang et al. 2021)
//   3D    side × side × side ranks, which divide each block once more (Agarwal et al. 1995; Bian et al. 2021)
//
// A rank's number is (depth · side + row) · side + col. A grid always has `sequence`: between layers, a rank holds only its
// share of the rows.
struct TensorGrid {
  std::uint32_t depth = 1, side = 1;  // side 1: no grid
  bool cube = false;                  // 3D; then depth is side
};
enum class TensorMode : std::uint8_t { line, square, squares, cube };  // 1D, 2D, 2.5D, 3D
// The grid of `ranks` ranks; empty if they do not form one. `depth`: the number of grids in 2.5D.
std::optional<TensorGrid> grid_of(TensorMode mode, std::uint32_t ranks, std::uint32_t depth);

struct TensorParallel {
  std::uint32_t ranks = 1, rank = 0;
  bool sequence = false;
  TensorGrid grid = {};
  // Neighbouring ranks that hold the same part of some parameters: key-value heads, if there are fewer of them than ranks.
  std::uint32_t twins = 1;
  // With `sequence`, in a row: rows are exchanged in this many pieces, each while the product of another piece runs. 1: all
  // rows at once.
  std::uint32_t pieces = 1;

  // The rank that adds what must be added once: a residual, the bias of a sum.
  [[nodiscard]] bool leads() const { return rank == 0; }
  [[nodiscard]] bool is_grid() const { return grid.side > 1; }
  // The number of parts into which a product's results (heads, features) are divided.
  [[nodiscard]] std::uint32_t ways() const { return is_grid() ? grid.side : ranks; }
};

}  // namespace terrace
