// The first layer: tokens → x, plus a vector for each position of a sequence if positions are learned.
//
// With tiles, each phase adds the rows that its tile has; the last phase adds the positions.
//
// Owner, threads, errors: as transformer_layer.h. A token outside the vocabulary fails the stream.
#pragma once

#include <terrace/parallel/layers/parts/transformer_layer.h>

namespace terrace::layers {

class Embedding final : public TransformerLayer {
 public:
  explicit Embedding(const Transformer& config);
  [[nodiscard]] LayerFacts facts(BatchShape) const override { return {}; }

 private:
  void describe_call(CallSteps& steps, LayerCall call, BatchShape shape) const override;
  [[nodiscard]] TensorView positions(Tensors tensors) const;
  // The tokens as indices of the tile's rows, in scratch if the table has several parts; −1: another tile, or another tensor
  // rank, has the row.
  [[nodiscard]] TensorView tokens_in(LayerContext& ctx, ScratchArena& arena, std::uint32_t tile) const;
  [[nodiscard]] std::uint64_t scratch_of(BatchShape shape, bool rows) const;  // rows: also a matrix of rows, beside x or dy
  [[nodiscard]] bool learned_positions() const { return config_.positions == Positions::learned; }
  [[nodiscard]] std::int64_t first_position(const LayerContext& ctx) const {
    return config_.context().runs(ctx.shape.seq).front().begin;
  }
  [[nodiscard]] bool is_one_run(const LayerContext& ctx) const {
    return ctx.documents.whole_sequences() && config_.context().runs(ctx.shape.seq).size() == 1;
  }
  [[nodiscard]] bool is_scaled() const { return config_.embedding_factor != 1; }
  // The gradient of the table's rows, in scratch if it is not dy.
  [[nodiscard]] TensorView scaled(LayerContext& ctx, ScratchArena& arena, TensorView dy) const;
  void embed(LayerContext& ctx, const LayerTensors& t, std::int64_t first_position, std::uint32_t tile) const;
  void embed_grad(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile) const;
};

}  // namespace terrace::layers
