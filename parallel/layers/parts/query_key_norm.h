// RMS norms of q and k, between the product that computes them and their rotation: separately for each head (Qwen3, Gemma 3),
// or for all heads together (OLMo 2).
//
// q and k are adjacent parts of longer rows, but a norm needs separate rows: q and k are copied out, these copies are the saved
// inputs of the norms, and the results are copied back. The input half of a backward carries the gradients of the norms'
// results to the weight half.
//
// Each tensor rank has some of the heads. If a norm is over all heads together, the ranks first add up what depends on whole
// rows: the mean square of q and of k, and in a backward two more means. Ranks that share key-value heads have equal rows of k,
// so the sums count all heads equally often; their gradients of k are parts of a sum, and so are the results.
//
// Owner:   a value of its layer; empty if the transformer has no such norms.
// Threads: as Layer.
// Errors:  none of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/layers/parts/scratch.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

class QueryKeyNorm {
 public:
  QueryKeyNorm() = default;
  // Appends its parameters, named as in the transformer's names.
  QueryKeyNorm(std::vector<ParamSpec>& params, const Transformer& config, std::int64_t block);

  explicit operator bool() const { return !parts_.empty(); }
  void name_params(std::vector<PhaseParam>& of_phase) const;  // appends its parameters
  // For this many rows: the tensors that forward() writes and the backward reads, those that input_grad() leaves for
  // weight_grad(), and the scratch of either call.
  [[nodiscard]] std::vector<TensorSpec> saved(std::int64_t rows) const;
  [[nodiscard]] std::vector<TensorSpec> carried(std::int64_t rows) const;
  [[nodiscard]] std::uint64_t scratch_bytes(std::int64_t rows) const { return *this ? scratch_of({scratch(rows)}) : 0; }
  // across(): true if the ranks add up sums over rows. sums(): the tensor of these sums.
  [[nodiscard]] bool across() const { return ranks_ > 1; }
  [[nodiscard]] TensorSpec sums(std::int64_t rows) const;

  // For rows [N, row] of q, k and v, or of their gradients: take() copies q and k out, into saved or carried tensors, and, if
  // the norms go across ranks, writes this rank's part of the sums; with gradients, `weights` are not empty. forward() writes
  // the norms of q and k in place. `sums` of forward(): those of all ranks; empty if the norms do not go across.
  void take(LayerContext& ctx, TensorView qkv, Tensors to, Tensors saved, Tensors weights, TensorView sums) const;
  void forward(LayerContext& ctx, Tensors weights, TensorView qkv, Tensors saved, ScratchArena arena, TensorView sums) const;
  void input_grad(LayerContext& ctx, Tensors weights, TensorView dqkv, Tensors saved, Tensors carried, ScratchArena arena,
                  TensorView sums) const;
  void weight_grad(LayerContext& ctx, Tensors gradients, Tensors saved, Tensors carried, Accumulate accumulate) const;

 private:
  struct Part {
    std::size_t param;
    std::int64_t first, width, each;  // first column and width in a row; width of one norm
  };
  // Views rows as rows of the length of one norm.
  [[nodiscard]] static TensorView norms(const Part& part, const TensorView& rows) {
    return reshaped(rows, {rows.elements() / part.each, part.each});
  }
  // The saved statistics of part `number`; they follow the inputs of all parts.
  [[nodiscard]] TensorView statistics(Tensors saved, std::size_t number) const { return saved[parts_.size() + number]; }
  [[nodiscard]] TensorSpec scratch(std::int64_t rows) const;
  // The sums of part `number`.
  [[nodiscard]] static TensorView sums_of(const TensorView& sums, std::size_t number, std::int64_t rows) {
    return part(sums, static_cast<std::int64_t>(number) * rows, {rows});
  }
  // The weight of an element in a mean over all ranks.
  [[nodiscard]] double share(const Part& part) const { return 1 / static_cast<double>(part.width * ranks_); }

  std::vector<Part> parts_;
  std::int64_t ranks_ = 1;  // ranks that have a part of each row
  double eps_ = 0, offset_ = 0;
  DType dtype_ = DType::fp32;
};

}  // namespace terrace::layers
