// A norm of a transformer and its place in the parameters of a layer.
//
// Owner:   a value of its layer.
// Threads: as Layer.
// Errors:  none of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/parallel/layers/parts/scratch.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

// The initial weights of a norm, with which it multiplies by 1.
Init gain_init(const Transformer& config);

// A norm's statistics: views of one packed tensor [1 or 2, N], rstd, then the mean if the norm removes it.
struct NormStatistics {
  TensorView rstd, mean;

  NormStatistics(const TensorView& packed);  // not explicit: a packed tensor is its statistics
  [[nodiscard]] NormStatistics rows(std::int64_t first, std::int64_t count) const;
};

// A norm of the transformer's kind, and its place in params(): LayerNorm (weight, bias) or RMSNorm (weight). A norm without a
// name changes nothing: it has no parameters, and its result is its input.
class Norm {
 public:
  // Appends its parameters, named `prefix`.weight (.bias).
  Norm(std::vector<ParamSpec>& params, std::string_view prefix, const Transformer& config);

  explicit operator bool() const { return present_; }
  [[nodiscard]] TensorSpec statistics(std::int64_t rows) const;
  void name_params(std::vector<PhaseParam>& of_phase) const;  // appends its parameters
  void forward(LayerContext& ctx, Tensors weights, TensorView y, TensorView x, const NormStatistics& statistics) const;
  void input_grad(LayerContext& ctx, Tensors weights, TensorView dx, TensorView dy, TensorView x,
                  const NormStatistics& statistics, Accumulate accumulate) const;
  void weight_grad(LayerContext& ctx, Tensors gradients, TensorView dy, TensorView x, const NormStatistics& statistics,
                   Accumulate accumulate) const;

 private:
  std::size_t first_;
  bool present_, centred_;
  double eps_, offset_;
  DType dtype_;
};

}  // namespace terrace::layers
