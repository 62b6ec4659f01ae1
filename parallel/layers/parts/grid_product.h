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
#include <terrace/parallel/layers/parts/grid_tensor.h>
#include <terrace/parallel/layers/parts/projection.h>
#include <terrace/parallel/model/call_steps.h>

namespace terrace::layers {

// Working tensors that the products of a call share.
struct GridRooms {
  GridRooms(CallSteps& steps, DType dtype, bool cube);
  std::uint32_t own;                                   // this rank's block of W
  std::uint32_t x, w;                                  // received from other ranks
  std::uint32_t block;                                 // a block of W that was joined from pieces
  std::uint32_t part;                                  // this rank's part of a sum
  std::uint32_t bias;                                  // this rank's block of the bias
  std::uint32_t sum, pieces, gradient, bias_gradient;  // for the gradient of W, in a wider dtype than activations
};

class GridProduct {
 public:
  GridProduct(CallSteps& steps, const GridRooms& rooms, const Projection& projection, const TensorParallel& tensor, bool first,
              std::int64_t rows);

  void forward(std::uint32_t x, GridTensor y);
  void input_grad(GridTensor dy, std::uint32_t dx, Half half = Half::input);
  // Leaves this rank's block of the gradient in rooms.gradient; add_gradient(), in a phase that has the gradients, adds it.
  void weight_grad(std::uint32_t x, GridTensor dy);
  void add_gradient(LayerContext& ctx, const LayerTensors& t, TensorView dy) const;
  [[nodiscard]] std::vector<std::uint32_t> bias_gradient() const;  // the working tensor that add_gradient() writes, if any

  [[nodiscard]] std::int64_t inputs() const { return inputs_; }    // of a block
  [[nodiscard]] std::int64_t outputs() const { return outputs_; }  // of a block

 private:
  enum class Way : std::uint8_t { broadcast, reduce };
  // `rooms`, and, if the product has one, the room of the bias, or the room in which a gathered block is joined.
  [[nodiscard]] std::vector<std::uint32_t> with_bias(std::vector<std::uint32_t> rooms) const;
  [[nodiscard]] std::vector<std::uint32_t> with_block(std::vector<std::uint32_t> rooms) const;
  void stage(Half half);  // copies this rank's block of W into rooms.own
  void send(Half half, Way way, Axis axis, std::uint32_t root, std::uint32_t from, std::uint32_t to, std::int64_t elements);
  void gather(Half half, Axis axis, std::uint32_t from, std::uint32_t to, std::int64_t each);
  void scatter(Half half, Axis axis, std::uint32_t from, std::uint32_t to, std::int64_t each);
  [[nodiscard]] Shape matrix() const;  // of a block of W
  [[nodiscard]] std::int64_t elements() const { return inputs_ * outputs_; }
  // Joins what was gathered over depth: W as one matrix.
  [[nodiscard]] TensorView together(LayerContext& ctx, const LayerTensors& t) const;
  void cut_up(LayerContext& ctx, const LayerTensors& t, const TensorView& block) const;  // the reverse of together()
  [[nodiscard]] TensorView bias(const LayerTensors& t, bool here) const;
  [[nodiscard]] double flops() const;  // of a whole product on this rank

  CallSteps& steps_;  // used while the call is described
  const GridRooms rooms_;
  const Projection& projection_;
  const GridCut cut_;
  const bool cube_;
  const std::int64_t side_, rows_, inputs_, outputs_;
  std::vector<PhaseParam> params_;
};

}  // namespace terrace::layers
