// RMS norms of q and k, between the product that makes them and their rotation: of each head by itself (Qwen3, Gemma 3), or of
// all heads together (OLMo 2).
//
// q and k lie side by side in rows that are longer, and a norm wants rows of its own: they are copied out, which are the saved
// inputs of the norms, and the results are copied back. Carried from the input half of a backward to its weight half are the
// gradients of the norms' results.
//
// Tensor ranks have some of the heads. Where a norm is of all heads together, they first add up what depends on whole rows: the
// mean square of q and of k, and in a backward two means more. Ranks that share key-value heads have equal rows of k, so their
// sums count each head as often as each other one; their gradients of k are parts of a sum, and so are the results.
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
  // Whether the ranks add up sums over rows; and of how many numbers.
  [[nodiscard]] bool across() const { return ranks_ > 1; }
  [[nodiscard]] TensorSpec sums(std::int64_t rows) const;

  // q and k of rows [N, row]: take() copies them out, and if the norms go across ranks writes this rank's part of the sums;
  // forward() writes their norms in place. `sums`: of all ranks; empty if the norms do not go across.
  void take(LayerContext& ctx, TensorView qkv, std::span<const TensorView> saved, TensorView sums) const;
  void forward(LayerContext& ctx, std::span<const TensorView> weights, TensorView qkv, std::span<const TensorView> saved,
               TensorView scratch, TensorView sums) const;
  // Their gradient, likewise.
  void take_grad(LayerContext& ctx, std::span<const TensorView> weights, TensorView dqkv, std::span<const TensorView> saved,
                 std::span<const TensorView> carried, TensorView sums) const;
  void input_grad(LayerContext& ctx, std::span<const TensorView> weights, TensorView dqkv, std::span<const TensorView> saved,
                  std::span<const TensorView> carried, TensorView scratch, TensorView sums) const;
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
  // Of the sums, those of part `number`.
  [[nodiscard]] static TensorView sums_of(const TensorView& sums, std::size_t number, std::int64_t rows) {
    return part(sums, static_cast<std::int64_t>(number) * rows, {rows});
  }
  // Of a rank's part of a mean.
  [[nodiscard]] double share(const Part& part) const { return 1 / static_cast<double>(part.width * ranks_); }

  std::vector<Part> parts_;
  std::int64_t ranks_ = 1;  // that have a part of each row
  double eps_ = 0, offset_ = 0;
  DType dtype_ = DType::fp32;
};

}  // namespace terrace::layers
