// The last layer: final norm, logits in slices of rows, cross-entropy.
//
// The logits of a slice are in scratch; the logits of all rows never exist at once. The training backward computes each slice's
// logits, loss, dlogits, dx and dW together: three products. A separate weight half recomputes the logits: one more product,
// the same bits.
//
// The number of rows of a slice depends only on the size of the vocabulary's parts, unless Transformer::head_rows sets it. dW
// is summed slice by slice: slices are added to the gradient in ascending rows, then micro-batch by micro-batch. (All other
// gradients are computed whole for a micro-batch, then added.) With one slice, as for vocabularies of bytes, both orders are
// the same.
//
// If the vocabulary is in parts (tiles, or those of tensor ranks), a first pass, the survey, computes the log-sum-exp of each
// row's logits part by part, which tensor ranks exchange, and a second pass computes the losses and gradients of each part.
// This costs one more product, but needs only one tile of the table at a time.
//
// Owner, threads, errors: as transformer_layer.h. A target outside the vocabulary fails the stream.
#pragma once

#include <algorithm>

#include <terrace/parallel/layers/parts/transformer_layer.h>

namespace terrace::layers {

class Head final : public TransformerLayer {
 public:
  explicit Head(const Transformer& config);
  // Nothing is saved: a training program never calls the forward.
  [[nodiscard]] LayerFacts facts(BatchShape shape) const override;
  // The rows of a full slice.
  [[nodiscard]] std::int64_t slice_rows() const;

 private:
  // A backward's Half::input writes ctx.loss. A decode call writes y: the logits, [1, vocab].
  void describe_call(CallSteps& steps, LayerCall call, BatchShape shape) const override;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const;
  struct Scratch {
    const Head& head;
    ScratchArena& arena;
    std::int64_t rows, slice = std::min(rows, head.slice_rows());
    DType dtype = head.config_.dtype;
    TensorView losses = arena.take(DType::fp64, {rows});
    TensorView statistics = arena.take(head.norm_.statistics(rows));
    TensorView normed = arena.take(dtype, {slice, head.config_.hidden});
    TensorView logits = arena.take(dtype, {slice, aligned_stride(dtype, head.tile_rows())});
    // The memory of the logits, or separate memory if they are capped.
    TensorView dlogits = head.config_.logit_cap != 0 ? arena.take(dtype, logits.shape) : logits;
    // If the vocabulary is in parts.
    TensorView targets = head.is_whole() ? TensorView{} : arena.take(DType::i32, {rows});
    TensorView log_sums = head.is_whole() ? TensorView{} : arena.take(accumulator_of(dtype), {rows});
  };
  struct Slice {
    std::int64_t first, count;
    NormStatistics statistics;
    TensorView x, normed, losses, targets, log_sums;
    MatrixView logits, dlogits;
  };
  [[nodiscard]] Slice slice_at(const LayerContext& ctx, const LayerTensors& t, const Scratch& scratch, std::int64_t first,
                               std::uint32_t tile) const;
  // Calls use(slice) for all rows, with the logits of a tile.
  template <class F>
  void each_slice(LayerContext& ctx, const LayerTensors& t, const Scratch& scratch, std::uint32_t tile, F&& use) const;
  void make_logits(LayerContext& ctx, const LayerTensors& t, const Slice& slice) const;
  void cap(LayerContext& ctx, const MatrixView& logits) const;
  // Computes the losses, and dlogits if `gradient`, from the slice's logits.
  void make_losses(LayerContext& ctx, const Slice& slice, bool gradient) const;
  // The phases of the survey, and the working tensor in which they leave the log-sum-exps of all parts.
  [[nodiscard]] std::uint32_t describe_survey(CallSteps& steps, BatchShape shape) const;
  // Writes the targets as indices of the tile's rows, and the log-sum-exp over all parts.
  void read_survey(LayerContext& ctx, const Scratch& scratch, TensorView survey, std::uint32_t tile) const;
  [[nodiscard]] Phase phase(LayerCall call, BatchShape shape, std::uint32_t tile) const;
  template <class Compute>
  [[nodiscard]] CallSteps::Run with_tile(std::uint32_t tile, Compute compute) const;
  // What the phases do. Of the table they get the tile's rows that have a token, or the gradient of these rows.
  // compute_tile(): the losses, and with `gradients` a backward.
  void compute_tile(LayerContext& ctx, const LayerTensors& t, TensorView survey, std::uint32_t tile, bool gradients) const;
  void decode_tile(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile) const;
  [[nodiscard]] std::vector<TensorView> with_rows(const LayerContext& ctx, Tensors tensors, std::uint32_t tile) const;

  Norm norm_;
  Projection logits_;
};

}  // namespace terrace::layers
