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

// A tensor of a call that a phase reads or writes.
struct GridTensor {
  enum class In : std::uint8_t { work, saved, carried } in = In::work;
  std::uint32_t number = 0;

  [[nodiscard]] TensorView view(const LayerTensors& t, Shape shape) const {
    return part((in == In::work ? t.work : in == In::saved ? t.saved : t.carried)[number], 0, shape);
  }
  // Adds this tensor to those that the phase uses. Saved tensors have one access for all of them, `of_all`, and so have carried
  // ones.
  void use(Phase& phase, Access access, Access of_all) const {
    if (in == In::work) phase.work.push_back({number, access});
    if (in == In::saved) phase.saved = of_all;
    if (in == In::carried) phase.carried = of_all;
  }
};

// Working tensors that the products of a call share.
struct GridRooms {
  GridRooms(CallSteps& steps, DType dtype, bool cube);
  std::uint32_t own;                                   // this rank's block of W
  std::uint32_t x, w;                                  // received from other ranks
  std::uint32_t block;                                 // a block of W that was joined from pieces
  std::uint32_t part;                                  // this rank's part of a sum
  std::uint32_t bias;                                  // this rank's block of the bias
  std::uint32_t narrow, u, du;                         // of adapters: this rank's part of a sum, and the sums
  std::uint32_t sum, pieces, gradient, bias_gradient;  // for the gradient of W, in a wider dtype than activations
};

class GridProduct {
 public:
  GridProduct(CallSteps& steps, const GridRooms& rooms, const Product& product, const TensorParallel& tensor, bool first,
              std::int64_t rows);

  void forward(std::uint32_t x, GridTensor y);
  void input_grad(GridTensor dy, std::uint32_t dx, Half half = Half::input);
  // Leaves this rank's block of the gradient in gradient(); add_gradient(), in a phase that has the gradients, adds it. With
  // adapters, it writes their gradients instead, or adds them if these are not the first rows of a call.
  void weight_grad(std::uint32_t x, GridTensor dy, bool first_rows = true);
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
  void send(Half half, Axis axis, std::uint32_t root, std::uint32_t from, std::uint32_t to, std::int64_t elements);
  void reduce(Half half, Axis axis, std::uint32_t root, std::uint32_t from, std::uint32_t to, std::int64_t elements);
  void in_cube(Half half, LowRank::Of of, std::uint32_t from, GridTensor to);
  void gather(Half half, Axis axis, std::uint32_t from, std::uint32_t to, std::int64_t each);
  void scatter(Half half, Axis axis, std::uint32_t from, std::uint32_t to, std::int64_t each);
  [[nodiscard]] Shape matrix() const;  // of a block of W
  [[nodiscard]] std::int64_t elements() const { return inputs_ * outputs_; }
  // Joins what was gathered over depth: W as one matrix.
  [[nodiscard]] TensorView together(LayerContext& ctx, const LayerTensors& t) const;
  void cut_up(LayerContext& ctx, const LayerTensors& t, const TensorView& block) const;  // the reverse of together()
  [[nodiscard]] TensorView bias(const LayerTensors& t, bool here) const;
  [[nodiscard]] double flops() const;  // of a whole product on this rank
  // Adapters. `from`: x or dy, in 3D as gathered.
  void narrow(Half half, LowRank::Of of, GridTensor from, std::uint32_t to);
  void adapt(Half half, LowRank::Of of, GridTensor from, GridTensor to);
  void adapter_gradients(std::uint32_t x, GridTensor dy, bool first_rows);

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
