// How a product with weights is cut over a grid of tensor ranks (TensorGrid): which axis cuts the matrix's inputs and which its
// results. The two products of a branch differ in 3D, where the result of the first is the input of the second.
//
//   2D, 2.5D  either product: inputs by row, results by col
//   3D        first: inputs by col, results by row; second: the other way round; each block's inputs once more by depth
//
// Pure. Threads: values.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <terrace/parallel/mesh/mesh.h>
#include <terrace/parallel/mesh/tensor_parallel.h>
#include <terrace/parallel/model/tensor_split.h>

namespace terrace::layers {

struct GridCut {
  GridCut(const TensorParallel& tensor, bool first)
      : tensor_(tensor),
        in(tensor.grid.cube && first ? Axis::col : Axis::row),
        out(tensor.grid.cube && first ? Axis::row : Axis::col) {}

  [[nodiscard]] std::uint32_t side() const { return tensor_.grid.side; }
  // stride(): the difference of the ranks of neighbours on an axis. place(): this rank's place on the axis.
  [[nodiscard]] std::uint32_t stride(Axis axis) const {
    return axis == Axis::col ? 1 : axis == Axis::row ? side() : side() * side();
  }
  [[nodiscard]] std::uint32_t place(Axis axis) const {
    return tensor_.rank / stride(axis) % (axis == Axis::depth ? tensor_.grid.depth : side());
  }
  [[nodiscard]] model::TensorSplit of_matrix(std::uint32_t output_dim, std::vector<std::int64_t> outputs) const {
    model::TensorSplit split{.dim = output_dim, .parts = std::move(outputs), .ways = side(), .stride = stride(out)};
    split.across = {.ways = side(), .stride = stride(in)};
    if (tensor_.grid.cube) {
      split.across.within = side();
      split.across.within_stride = stride(Axis::depth);
    }
    return split;
  }
  [[nodiscard]] model::TensorSplit of_bias(std::vector<std::int64_t> outputs) const {
    return {.dim = 0, .parts = std::move(outputs), .ways = side(), .stride = stride(out)};
  }
  // Of the columns of x.
  [[nodiscard]] model::TensorSplit of_inputs(std::int64_t inputs) const {
    return {.dim = 1, .parts = {inputs}, .ways = side(), .stride = stride(tensor_.grid.cube ? in : out)};
  }

 private:
  TensorParallel tensor_;

 public:
  Axis in, out;
};

}  // namespace terrace::layers
