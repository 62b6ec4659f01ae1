// One expert of a mixture: down(activation(up(x))), on some rows. Either product may have an adapter (low_rank.h).
//
// Owner:   a value of its layer.
// Threads: as Layer.
// Errors:  as Projection.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/parallel/layers/parts/product.h>
#include <terrace/parallel/layers/parts/transformer.h>

namespace terrace::layers {

class Expert {
 public:
  // Appends its parameters, named `prefix` + the tensors' names, as a separate unit.
  Expert(std::vector<ParamSpec>& params, const std::string& prefix, const Transformer& config, std::uint32_t unit);

  [[nodiscard]] std::int64_t up_width() const { return up_.outputs(); }
  void name_params(std::vector<PhaseParam>& of_phase) const;
  void name_adapters(std::vector<PhaseParam>& of_phase) const;  // weight_grad() needs their weights, too
  [[nodiscard]] double flops(double rows) const;                // of a forward
  using Calls = Product::Calls;
  [[nodiscard]] double rounding_bytes(Calls calls, double rows) const;  // of both products

  // `up`: the activation's input, kept for the backward. The rows of all tensors are those of this expert, at least one.
  void forward(LayerContext& ctx, Tensors weights, TensorView y, TensorView up, TensorView x, ScratchArena arena) const;
  void input_grad(LayerContext& ctx, Tensors weights, TensorView dx, TensorView dup, TensorView dy, TensorView up,
                  ScratchArena arena) const;
  void weight_grad(LayerContext& ctx, Tensors weights, Tensors gradients, TensorView dup, TensorView dy, TensorView up,
                   TensorView x, ScratchArena arena, Accumulate accumulate) const;
  // The gradient of an expert without rows: zeros, or nothing to add.
  void no_weight_grad(LayerContext& ctx, Tensors gradients, Accumulate accumulate) const;
  // The scratch that any of these calls needs for this many rows.
  [[nodiscard]] std::uint64_t scratch_bytes(std::int64_t rows) const;

 private:
  [[nodiscard]] TensorSpec middle(std::int64_t rows) const { return {"", dtype_, {rows, down_.inputs()}}; }

  Activation activation_;
  DType dtype_;
  Product up_, down_;
};

}  // namespace terrace::layers
