// RMS norms of q and k, between the product that makes them and their rotation: of each head by itself (Qwen3, Gemma 3), or of
// all heads together (OLMo 2).
//
// q and k lie side by side in rows that are longer, and a norm wants rows of its own: they are copied out, which are the saved
// inputs of the norms, and the results are copied back. Carried from the input half of a backward to its weight half are the
// gradients of the norms' results.
//
// Owner:   a value of its layer; empty if the transformer has no such norms.
// Threads: as Layer.
// Errors:  none of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/layer.h>
#include <terrace/parallel/layers/transformer.h>
#include <terrace/parallel/layers/views.h>

namespace terrace::layers {

class QueryKeyNorm {
 public:
  QueryKeyNorm() = default;
  // Appends its parameters, named as in the transformer's names.
  QueryKeyNorm(std::vector<ParamSpec>& params, const Transformer& config, std::int64_t block);

  explicit operator bool() const { return !parts_.empty(); }
  void name_params(std::vector<PhaseParam>& of_phase) const;  // appends its parameters
  // Of so many rows: what forward() writes and the backward reads, what input_grad() leaves for weight_grad(), and the scratch
  // of either call.
  [[nodiscard]] std::vector<TensorSpec> saved(std::int64_t rows) const;
  [[nodiscard]] std::vector<TensorSpec> carried(std::int64_t rows) const;
  [[nodiscard]] TensorSpec scratch(std::int64_t rows) const;

  // q and k of rows [N, row], in place.
  void forward(LayerContext& ctx, std::span<const TensorView> weights, TensorView qkv, std::span<const TensorView> saved,
               TensorView scratch) const;
  // Their gradient, in place.
  void input_grad(LayerContext& ctx, std::span<const TensorView> weights, TensorView dqkv, std::span<const TensorView> saved,
                  std::span<const TensorView> carried, TensorView scratch) const;
  void weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, std::span<const TensorView> saved,
                   std::span<const TensorView> carried, Accumulate accumulate) const;

 private:
  struct Part {
    std::size_t param;
    std::int64_t first, width, each;  // columns of a row, and of one norm
  };
  // Rows as long as a norm.
  [[nodiscard]] static TensorView norms(const Part& part, const TensorView& rows) {
    return reshaped(rows, {rows.elements() / part.each, part.each});
  }
  // Of part `number` the saved statistics, behind the inputs of all parts.
  [[nodiscard]] TensorView statistics(std::span<const TensorView> saved, std::size_t number) const {
    return saved[parts_.size() + number];
  }

  std::vector<Part> parts_;
  double eps_ = 0, offset_ = 0;
  DType dtype_ = DType::fp32;
};

}  // namespace terrace::layers
