// The common parts of a language model's layers: a norm, a projection, and the checks of a call's views.
//
// The input half of a backward gets x, saved, dy, dx and carried; the weight half gets x, saved, dy, gradients and carried.
// Half::both gets all of them and runs the halves one after the other, so that it gives the same bits.
//
// Owner:   the model owns its layers; parts are values of a layer.
// Threads: as Layer.
// Errors:  std::logic_error for views that do not match the layer's own specification.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/model_config.h>
#include <terrace/examples/lm/views.h>
#include <terrace/parallel/layer.h>

namespace terrace::lm {

// "model.layers.3." + name, with the family's word for blocks.
std::string name_in_block(const ModelConfig& config, std::int64_t block, std::string_view name);

// The cache of one layer for one sequence; empty for layers without a cache.
using CacheViews = std::span<const TensorView>;

// A norm's statistics as its calls want them: views of one packed tensor [1 or 2, N], rstd, then the mean where one is removed.
struct NormStatistics {
  TensorView rstd, mean;

  NormStatistics(const TensorView& packed);  // not explicit: a packed tensor is its statistics
  [[nodiscard]] NormStatistics rows(std::int64_t first, std::int64_t count) const;
};

// A norm of the family's kind, and its place in params(): LayerNorm (weight, bias) or RMSNorm (weight).
class Norm {
 public:
  // Appends its parameters, named `prefix`.weight (.bias).
  Norm(std::vector<ParamSpec>& params, std::string_view prefix, const ModelConfig& config);

  [[nodiscard]] TensorSpec statistics(std::int64_t rows) const;
  void forward(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView x,
               const NormStatistics& statistics) const;
  void input_grad(LayerContext& ctx, std::span<const TensorView> weights, TensorView dx, TensorView dy, TensorView x,
                  const NormStatistics& statistics, Accumulate accumulate) const;
  void weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, TensorView dy, TensorView x,
                   const NormStatistics& statistics, Accumulate accumulate) const;

 private:
  std::size_t first_;
  bool centred_;
  double eps_;
  DType dtype_;
};

// A linear map: y = x · W (+ b), with the family's names, order of matrices and biases.
//
// Several matrices that read the same x (q, k, v; gate, up) are one product. The layout packs a layer's tensors back to back
// at multiples of 64 elements, so they are one matrix in memory when their sizes are such multiples; otherwise they are copied
// together in scratch first (and their gradient is made there), which gives the same bits. The same holds for their biases.
class Projection {
 public:
  // What tensor ranks have a part of: each result, in so many ways, or the inputs. Then a result is a part of a sum, to which
  // one rank adds the bias.
  struct Split {
    enum class Of : std::uint8_t { outputs, inputs } of = Of::outputs;
    std::vector<std::uint32_t> ways = {};  // one for each result, or for the inputs
  };
  // Appends its parameters, named `prefix` + the tensors' names: all .weight, then all .bias. `outputs`: the width of each
  // result, which is a tensor of its own or a part of the only one, in the whole model.
  Projection(std::vector<ParamSpec>& params, const std::string& prefix, const ProjectionParts& parts,
             std::vector<std::int64_t> outputs, std::int64_t inputs, const Split& split, double init_std,
             const ModelConfig& config);
  // The one matrix [outputs, inputs] that is already declared as the last of `params`, without bias, whatever the family.
  static Projection declared(const std::vector<ParamSpec>& params, DType dtype);

  // All results' weights as one matrix and one bias; an empty bias if there is none.
  struct Whole {
    TensorView matrix, bias;
  };
  [[nodiscard]] std::int64_t outputs() const;
  // Scratch for the weights and for their gradient; empty views where none is needed.
  [[nodiscard]] Whole place_weights(ScratchArena& arena) const { return place(arena, dtype_); }
  [[nodiscard]] Whole place_gradient(ScratchArena& arena) const { return place(arena, accumulator_of(dtype_)); }
  // `place`: the result of place_weights(). prepare() fills it once for all products of a call and returns the weights to use.
  [[nodiscard]] Whole prepare(LayerContext& ctx, std::span<const TensorView> weights, const Whole& place) const;
  void forward(LayerContext& ctx, const Whole& weights, TensorView y, TensorView x,
               Accumulate accumulate = Accumulate::no) const;
  void input_grad(LayerContext& ctx, const Whole& weights, TensorView dx, TensorView dy) const;
  // Computes the whole gradient, then writes or adds it. `place`: the result of place_gradient().
  void weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, const Whole& place, TensorView dy, TensorView x,
                   Accumulate accumulate) const;

 private:
  Projection() = default;
  // Whether the tensors of `width` elements for each output lie side by side, which follows from their sizes.
  [[nodiscard]] bool adjacent(std::int64_t width) const;
  [[nodiscard]] Whole place(ScratchArena& arena, DType dtype) const;
  [[nodiscard]] std::span<const TensorView> matrices(std::span<const TensorView> tensors) const;
  [[nodiscard]] std::span<const TensorView> biases(std::span<const TensorView> tensors) const;

  std::size_t first_ = 0;
  std::vector<std::int64_t> outputs_;  // of each tensor
  std::int64_t inputs_ = 0;            // outputs and inputs of this rank
  bool out_in_ = true, bias_ = false;
  bool adds_bias_ = true;  // false: another tensor rank does
  DType dtype_ = DType::fp32;
};

// The base of the layers: name, parameters, and the checks of a call's arguments.
class LmLayer : public GenerativeLayer {
 public:
  [[nodiscard]] std::string name() const final { return name_; }
  [[nodiscard]] std::vector<ParamSpec> params() const final { return params_; }
  [[nodiscard]] std::vector<TensorSpec> cache(std::int64_t) const override { return {}; }

 protected:
  LmLayer(std::string name, const ModelConfig& config) : config_(config), name_(std::move(name)) {}

  [[nodiscard]] const TensorNames& names() const { return config_.family.get().tensors; }

  // Throw std::logic_error that names the layer and the view. The first layer needs no x, the last one no y.
  struct Ends {
    bool x = true, y = true;
  };
  void check_forward(const LayerContext& ctx, const LayerTensors& t, Ends ends) const;
  void check_backward(const LayerContext& ctx, const LayerTensors& t, Half half, Ends ends) const;
  void check_decode(const LayerContext& ctx, std::span<const TensorView> weights, CacheViews cache,
                    std::int64_t position) const;
  void check(const char* what, const TensorView& view, DType dtype, Shape shape) const;
  void check_weights(std::span<const TensorView> weights) const;
  // The table of the vocabulary, or this rank's rows of it, of which the last may have no token.
  [[nodiscard]] static ParamSpec table_of(const ModelConfig& config, std::string_view name);
  // The gradient of the rows without a token.
  void zero_rest(LayerContext& ctx, const TensorView& table_gradient) const;
  // Begins the result of a residual layer, or the gradient of its input: to = from on the tensor rank that adds the residual.
  // Returns how the rest is written there.
  Accumulate begin_residual(LayerContext& ctx, TensorView to, TensorView from) const;
  [[noreturn]] void fail(const std::string& what) const;

  const ModelConfig config_;
  std::vector<ParamSpec> params_;

 private:
  void check_all(const char* what, std::span<const TensorView> views, const std::vector<TensorSpec>& specs) const;

  std::string name_;
};

}  // namespace terrace::lm
