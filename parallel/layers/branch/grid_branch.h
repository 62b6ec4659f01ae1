// y = x + out(middle(in(norm(x)))) on a grid of tensor ranks: half of a transformer block like ResidualBranch, but with
// matrices in blocks (grid_product.h).
//
//   forward    norm, pack │ all-to-all │ in │ middle │ out │ all-to-all │ residual
//   backward   pack │ all-to-all │ out's dx │ middle's gradient │ in's dx │ all-to-all │ norm's gradient, residual
//              │ out's dW │ in's dW, norm's gradient
//
// Between layers a rank has its share of the rows and all columns. The all-to-alls, over the axis `col`, exchange them for all
// rows of a row of ranks and a block of columns, and back. These rows are whole sequences, so attention needs no other rank.
//
// Saved: the norm's statistics and result, and the result of `in`; each rank saves 1 / ranks of each.
//
// Owner, threads, errors: as transformer_layer.h. It cannot generate.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/parallel/layers/parts/grid_tensor.h>
#include <terrace/parallel/layers/parts/transformer_layer.h>

namespace terrace::layers {

class GridBranch : public TransformerLayer {
 public:
  [[nodiscard]] bool on_shares() const final { return true; }
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape shape) const override;
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape shape) const final;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const final;
  [[nodiscard]] double forward_flops(BatchShape shape) const final;
  void describe(CallSteps& steps, LayerCall call, BatchShape shape) const final;

 protected:
  // Positions in saved(); a layer's own tensors follow.
  enum Saved : std::size_t { kStatistics, kNormed, kInResult, kOwn };
  struct Parts {
    std::string_view norm;  // names in the block
    const ProjectionParts &in, &out;
    std::vector<std::int64_t> in_outputs;  // the width of each result of `in`, in the whole model
    std::int64_t out_inputs;
    std::string in_result;  // its name, for messages
  };
  GridBranch(std::string name, const Transformer& config, std::int64_t block, const Parts& parts);

  // save_middle() makes what the middle saves, from the saved result of `in`; middle() and middle_grad() make the middle and
  // its gradient; middle_flops() counts the middle's products.
  virtual void save_middle(LayerContext&, const LayerTensors&) const {}
  virtual void middle(LayerContext& ctx, const LayerTensors& t, TensorView to) const = 0;
  virtual void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView din, TensorView dmiddle) const = 0;
  [[nodiscard]] virtual double middle_flops(BatchShape) const { return 0; }

  // The shape of the sequences that this rank's row of ranks has.
  [[nodiscard]] BatchShape here(BatchShape shape) const {
    return {shape.batch / (config_.tensor().grid.depth * config_.tensor().grid.side), shape.seq};
  }

  Norm norm_;
  Projection in_, out_;

 private:
  enum Carried : std::size_t { kDout, kDin, kDnormed };
  enum class Way : std::uint8_t { pack, unpack };

  void write_forward(CallSteps& steps, BatchShape shape) const;
  void write_backward(CallSteps& steps, BatchShape shape) const;
  // Converts between this rank's rows and blocks of their columns, one for each rank of the axis `col`.
  void deal(LayerContext& ctx, TensorView rows, TensorView blocks, Way way, Accumulate accumulate) const;
  void exchange_columns(CallSteps& steps, Half half, BatchShape shape, std::uint32_t from, std::uint32_t to) const;
  // Where a product reads or writes a tensor: in 3D a working tensor, because it is exchanged; else `lies`, its own place.
  [[nodiscard]] GridTensor travels(CallSteps& steps, const std::string& name, GridTensor lies) const;
  [[nodiscard]] std::vector<std::uint32_t> travelling(const GridTensor& tensor) const;  // its working tensor, if it has one
  [[nodiscard]] bool is_cube() const { return config_.tensor().grid.cube; }
  [[nodiscard]] std::int64_t side() const { return config_.tensor().grid.side; }
  [[nodiscard]] std::int64_t columns() const { return config_.hidden / side(); }
  [[nodiscard]] std::int64_t middle_columns() const { return middle_width_ / side(); }
  [[nodiscard]] Shape block(BatchShape shape) const { return {here(shape).tokens(), columns()}; }  // of x in a product
  [[nodiscard]] Shape share(BatchShape shape) const { return {rows_of(shape), config_.hidden}; }   // of x between layers

  std::string in_result_;
  std::int64_t middle_width_;
};

}  // namespace terrace::layers
