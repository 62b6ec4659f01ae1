// The low-rank adapters of a product with weights (LoRA, Hu et al. 2021): to y = x · Wᵀ they add s · (x · Aᵀ) · Bᵀ, where A is
// [rank, inputs], B is [outputs, rank] and s = alpha ÷ rank. B begins as zeros, so that a new adapter changes nothing.
//
// A product whose results are several tensors (q, k, v; gate, up) has an adapter for each that is named. They are computed as
// one: the A's lie one above the other, and the B's in blocks of one matrix that is zero elsewhere.
//
// Tensor ranks that have a part of the product's outputs have these rows of B and all of A; ranks that have a part of its
// inputs have these columns of A and all of B. Either way what a rank adds to y and dx, and the gradient of the matrix that all
// of them hold, is its part of a sum that the engine makes of the product anyway: an adapter exchanges no activation.
//
// Owner:   a value of its layer.
// Threads: as Layer.
// Errors:  none: shapes follow from the product's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/parallel/layer.h>
#include <terrace/parallel/layers/projection.h>
#include <terrace/parallel/layers/transformer.h>
#include <terrace/parallel/layers/views.h>

namespace terrace::layers {

class LowRank {
 public:
  // Results of a product, side by side, which may have an adapter.
  struct Result {
    std::string tensor, target;  // its name before ".lora_A", and that among the transformer's adapted tensors
    std::int64_t outputs;
    TensorSplit split = {};  // of the outputs
  };
  // Appends the parameters of those results that the transformer adapts, as a unit of their own.
  LowRank(std::vector<ParamSpec>& params, const std::vector<Result>& results, const Projection& product, std::uint32_t unit,
          const Transformer& config);
  // A product's tensors, of which each may have one.
  static std::vector<Result> results_of(const Projection& product, const std::string& prefix,
                                        const std::vector<std::string>& tensors);

  explicit operator bool() const { return !parts_.empty(); }
  void name_params(std::vector<PhaseParam>& of_phase) const;  // appends them

  // The scratch of a call for so many rows; all of it empty without adapters.
  struct Room {
    TensorView a, b, u;  // all A's and all B's, and x · Aᵀ or its gradient
  };
  struct GradientRoom {
    Room forward;
    TensorView du, da, db, one;  // one: the gradient of one B
  };
  [[nodiscard]] Room place(ScratchArena& arena, std::int64_t rows) const;
  [[nodiscard]] GradientRoom place_gradient(ScratchArena& arena, std::int64_t rows) const;
  [[nodiscard]] std::uint64_t bytes(std::int64_t rows) const;
  [[nodiscard]] std::uint64_t gradient_bytes(std::int64_t rows) const;

  // Each adds to what the product has written. The room may be for more rows.
  void forward(LayerContext& ctx, std::span<const TensorView> weights, const Room& room, TensorView y, TensorView x) const;
  void input_grad(LayerContext& ctx, std::span<const TensorView> weights, const Room& room, TensorView dx, TensorView dy) const;
  void weight_grad(LayerContext& ctx, std::span<const TensorView> weights, std::span<const TensorView> gradients,
                   const GradientRoom& room, TensorView dy, TensorView x, Accumulate accumulate) const;

 private:
  struct Part {
    std::size_t a = 0, b = 0;  // their places in params()
    std::int64_t first_output = 0, outputs = 0;
  };
  [[nodiscard]] std::int64_t columns() const { return rank_ * std::ssize(parts_); }  // of x · Aᵀ
  [[nodiscard]] bool is_whole() const { return parts_.size() == 1 && parts_[0].outputs == outputs_; }
  [[nodiscard]] TensorView all_a(LayerContext& ctx, std::span<const TensorView> weights, const Room& room) const;
  [[nodiscard]] TensorView all_b(LayerContext& ctx, std::span<const TensorView> weights, const Room& room) const;
  // s · x · Aᵀ and s · dy · B, in `to`: the rows of `from`.
  TensorView reduce(LayerContext& ctx, TensorView to, TensorView from, TensorView matrix, Transpose transpose) const;

  std::vector<Part> parts_;
  std::int64_t rank_ = 0, inputs_ = 0, outputs_ = 0;
  DType dtype_ = DType::fp32;
  double scale_ = 1;  // s
};

}  // namespace terrace::layers
