// The last layer: final norm, logits in slices of rows, cross-entropy.
//
// The logits of a slice are in scratch; the logits of all rows never exist at once. The training backward computes each slice's
// logits, loss, dlogits, dx and dW together: three products. A separate weight half recomputes the logits: one more product,
// the same bits.
//
// The number of rows of a slice depends on the vocabulary alone. A slice is the unit of dW's fold: slices are added to the
// gradient in ascending rows, then micro-batch by micro-batch. (All other gradients are computed whole for a micro-batch, then
// added.) With one slice, as for vocabularies of bytes, both are the same.
//
// With tiles of the vocabulary, or on tensor ranks, a first pass takes the log-sum-exp of each row's logits part by part (the
// survey), and a second one computes the losses and gradients of each part: one product more, and the table's rows are needed a
// tile at a time.
//
// Owner, threads, errors: as transformer_layer.h. A target outside the vocabulary fails the stream.
#pragma once

#include <terrace/parallel/layers/transformer_layer.h>

namespace terrace::layers {

class Head final : public TransformerLayer {
 public:
  explicit Head(const Transformer& config);
  // Nothing is saved: a training program never calls forward().
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape) const override { return {}; }
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape shape) const override;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  [[nodiscard]] double forward_flops(BatchShape shape) const override;
  [[nodiscard]] std::vector<Phase> phases(LayerCall call, BatchShape shape) const override;
  void forward(LayerContext& ctx, const LayerTensors& t) const override;
  // ctx.loss is written by Half::input. With ctx.evaluate: as forward().
  void backward(LayerContext& ctx, const LayerTensors& t, Half half) const override;
  // y: the logits, [1, vocab].
  void decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                   std::int64_t position) const override;

  // If the vocabulary is in parts: the log-sum-exp of each row's logits, for each tile here.
  [[nodiscard]] std::optional<TensorSpec> survey_spec(BatchShape shape) const override;
  void survey(LayerContext& ctx, const LayerTensors& t) const override;

  // Rows of a slice, when there are as many.
  [[nodiscard]] std::int64_t slice_rows() const;

 private:
  struct Scratch {  // V: the largest tile's rows
    Scratch(const Head& head, ScratchArena& arena, std::int64_t rows);
    TensorView losses, statistics, normed;  // [N], [k, N], [slice, C]
    TensorView logits;                      // [slice, V] in rows of aligned_stride()
    TensorView dlogits;                     // the logits' place, or one of its own if they are capped
    TensorView targets, log_sums;           // [N], [N], if the vocabulary is in parts
  };
  struct Decode {
    Decode(const Head& head, ScratchArena& arena);
    TensorView statistics, normed;
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
  // From the slice's logits: its losses and (when asked for) dlogits.
  void make_losses(LayerContext& ctx, const Slice& slice, bool gradient) const;
  // Targets as numbers of the tile's rows, and the log-sum-exp of all parts' logits.
  void read_survey(LayerContext& ctx, const Scratch& scratch, std::uint32_t tile) const;
  void backward_of_tile(LayerContext& ctx, const LayerTensors& t, Half half, std::uint32_t tile) const;
  // All tensors, the table as the tile's rows that have a token.
  [[nodiscard]] std::vector<TensorView> with_tile(const LayerContext& ctx, std::span<const TensorView> tensors,
                                                  std::uint32_t tile) const;
  void check_loss(const LayerContext& ctx) const;

  Norm norm_;
  Projection logits_;
};

}  // namespace terrace::layers
