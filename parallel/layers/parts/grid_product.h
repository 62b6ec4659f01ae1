// A product with weights whose blocks lie on a grid of tensor ranks, as phases of a call.
//
// 2D and 2.5D (SUMMA): in step l the ranks of a row get block l of x, the ranks of a column block l of W, and each adds one
// product. Gradients: dx(l) is a sum over a row, dW(l) a sum over a column.
//
//   forward   side × { broadcast x, broadcast W, y += x · W }
//   dx        side × { broadcast W, part = dy · Wᵀ, reduce to column l }
//   dW        side × { broadcast x, part = xᵀ · dy, reduce to row l }
//
// 3D: a rank gathers what it needs and multiplies once; the parts of the result are reduce-scattered.
//
//   forward   all-gather x, all-gather W, y = x · W, reduce-scatter
//   dx        all-gather dy, all-gather W, dx = dy · Wᵀ, reduce-scatter
//   dW        all-gather x, all-gather dy, dW = xᵀ · dy, reduce-scatter
//
// Adapters (low_rank.h): each rank computes its part of u = x · Aᵀ, which has few columns. The ranks with the other columns of
// x add up their parts (in 3D, of the gathered rows), and then y += u · Bᵀ. Likewise for dx. The weight half computes both
// again.
//
// Exchanged tensors are working tensors. In 2D the results of `forward`, and `dy`, are not exchanged and may be elsewhere.
//
// x is [rows, inputs ÷ side] and y is [rows, outputs ÷ side] with rows = tokens ÷ (depth · side). Nothing that was gathered is
// kept for the backward.
//
// Owner: a value of one description; it borrows the projection. Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/layers/parts/grid_cut.h>
#include <terrace/parallel/layers/parts/product.h>
#include <terrace/parallel/model/call_steps.h>

namespace terrace::layers {

// Working tensors that the products of a call share.
struct GridRooms {
  CallSteps& steps;
  DType dtype;
  bool cube;
  std::uint32_t own = steps.room("own block of weights", dtype);
  std::uint32_t x = steps.room("rows of another rank", dtype);
  std::uint32_t w = steps.room("weights of another rank", dtype);
  std::uint32_t block = steps.room("block of weights", dtype);  // joined from pieces
  std::uint32_t part = cube ? steps.room("part of a sum", dtype) : x;
  std::uint32_t bias = steps.room("bias", dtype);
  std::uint32_t narrow = steps.room("part of an adapter's narrow result", dtype);
  std::uint32_t u = steps.room("narrow result", dtype);
  std::uint32_t du = steps.room("gradient of a narrow result", dtype);
  // For the gradient of W, in a wider dtype than activations.
  std::uint32_t sum = steps.room("part of a gradient", accumulator_of(dtype));
  std::uint32_t pieces = steps.room("a gradient in pieces", accumulator_of(dtype));
  std::uint32_t gradient = steps.room("own block of a gradient", accumulator_of(dtype));
  std::uint32_t bias_gradient = steps.room("gradient of the bias", accumulator_of(dtype));
};

class GridProduct {
 public:
  GridProduct(const GridRooms& rooms, const Product& product, const TensorParallel& tensor, bool first, std::int64_t rows);

  void forward(std::uint32_t x, PhaseTensor y);
  void input_grad(PhaseTensor dy, std::uint32_t dx, Half half = Half::input);
  // Leaves this rank's block of the gradient in gradient(); add_gradient(), in a phase that has the gradients, adds it. With
  // adapters, it writes their gradients instead, or adds them if these are not the first rows of a call.
  void weight_grad(std::uint32_t x, PhaseTensor dy, bool first_rows = true);
  void add_gradient(LayerContext& ctx, const LayerTensors& t, TensorView dy) const;
  // The working tensors that add_gradient() reads, and writes.
  [[nodiscard]] std::vector<std::uint32_t> gradient() const;
  [[nodiscard]] std::vector<std::uint32_t> bias_gradient() const;

  [[nodiscard]] static mesh::Members members(Axis axis);

 private:
  // `rooms`, and, if the product has one, the room of the bias, or the room in which a gathered block is joined.
  [[nodiscard]] std::vector<std::uint32_t> with_bias(std::vector<std::uint32_t> rooms) const;
  [[nodiscard]] std::vector<std::uint32_t> with_block(std::vector<std::uint32_t> rooms) const;
  void stage(Half half);  // copies this rank's block of W into rooms.own
  void in_cube(Half half, LowRank::Of of, std::uint32_t from, PhaseTensor to);
  [[nodiscard]] Shape matrix() const;  // of a block of W
  [[nodiscard]] std::int64_t elements() const { return inputs_ * outputs_; }
  // Joins what was gathered over depth, W as one matrix; or cuts it up.
  void move_pieces(LayerContext& ctx, const TensorView& block, const TensorView& pieces, bool join) const;
  [[nodiscard]] TensorView bias(const LayerTensors& t, bool here) const;
  [[nodiscard]] double flops() const;  // of a whole product on this rank
  // Adapters. `from`: x or dy, in 3D as gathered.
  void narrow(Half half, LowRank::Of of, PhaseTensor from, std::uint32_t to);
  void adapt(Half half, LowRank::Of of, PhaseTensor from, PhaseTensor to);
  void adapter_gradients(std::uint32_t x, PhaseTensor dy, bool first_rows);

  CallSteps& steps_;  // used while the call is described
  const GridRooms rooms_;
  const Projection& projection_;
  const LowRank& adapters_;
  const GridCut cut_;
  const bool cube_;
  const std::int64_t side_, rows_, inputs_, outputs_;
  std::vector<PhaseParam> params_, of_adapters_;
};

}  // namespace terrace::layers
