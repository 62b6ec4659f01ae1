// y = x + out(middle(in(norm(x)))): half of a transformer block, where `in` and `out` are products with weights. A derived
// layer defines the middle; the rest of a call is here. Some transformers have norms of q and k after `in`, and a norm of the
// result of `out`, which tensor ranks add up before that norm.
//
// Saved for the backward are the norm's statistics and the result of `in`; the norm's result is recomputed, which costs one
// pass over x. Tensor ranks have a part of the results of `in`, and so of the inputs of `out`. The branch itself exchanges rows
// in two cases (residual_pieces.cpp): with pieces, while its products run, and with sequence parallelism if a norm needs whole
// results. In tiles it needs one tile of one matrix at a time (residual_tiles.cpp). Otherwise each product is one phase
// (residual_whole.cpp). Either product may have adapters (low_rank.h).
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/parallel/layers/parts/low_rank.h>
#include <terrace/parallel/layers/parts/query_key_norm.h>
#include <terrace/parallel/layers/parts/result_norm.h>
#include <terrace/parallel/layers/parts/row_pieces.h>
#include <terrace/parallel/layers/parts/tiled_projection.h>
#include <terrace/parallel/layers/parts/transformer_layer.h>

namespace terrace::layers {

class ResidualBranch : public TransformerLayer {
 public:
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape shape) const final;
  [[nodiscard]] bool on_shares() const final {
    return config_.tensor().pieces > 1 || (config_.tensor().sequence && result_norm_);
  }
  [[nodiscard]] bool adds_up() const final { return config_.tensor().ranks > 1 && !on_shares() && result_norm_; }
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape shape) const final;
  [[nodiscard]] std::uint64_t scratch_bytes(BatchShape shape) const override;
  void describe(CallSteps& steps, LayerCall call, BatchShape shape) const final;

 protected:
  // Positions in saved(); a layer's own tensors follow, then those of the further norms.
  enum Saved : std::size_t { kStatistics, kInResult, kOwn };
  [[nodiscard]] virtual std::vector<TensorSpec> saved_of_middle(BatchShape shape) const;
  struct Parts {
    std::string_view norm, result_norm;  // names in the block; empty: none
    const ProjectionParts &in, &out;
    std::vector<std::int64_t> in_outputs;  // the width of each result of `in`, in the whole model
    std::vector<std::uint32_t> in_ways;    // number of parts into which tensor ranks split each
    std::int64_t out_inputs;
    std::string in_result;      // its name, for messages
    std::uint32_t tiles = 1;    // number of tiles in which the two products run
    bool is_attention = false;  // the results of `in` are q, k and v
  };
  ResidualBranch(std::string name, const Transformer& config, std::int64_t block, const Parts& parts);

  // Where `in` writes its result: the saved tensor, or scratch of the phase with in_result_bytes() bytes.
  virtual TensorView in_result(const LayerTensors& t, std::int64_t, ScratchArena&) const { return t.saved[kInResult]; }
  [[nodiscard]] virtual std::uint64_t in_result_bytes(std::int64_t) const { return 0; }
  // Computes what the middle saves, from the result of `in`.
  virtual void save_middle(LayerContext&, const LayerTensors&, TensorView) const {}
  // A middle of several phases has working tensors, the first ones of a call. describe_middle() describes its phases in a
  // forward and in the input half of a backward. The phase before them ends with save_middle() or middle_grad(), which write
  // the working tensors that begins_middle() names. The middle's last phase writes the middle, or the gradient of the result of
  // `in`, where the next phase reads it.
  [[nodiscard]] virtual std::vector<TensorSpec> middle_work(LayerCall, BatchShape) const { return {}; }
  [[nodiscard]] virtual std::vector<std::uint32_t> begins_middle(LayerCall) const { return {}; }
  virtual void describe_middle(CallSteps&, LayerCall, BatchShape) const {}
  virtual void describe_decode(CallSteps& steps) const = 0;
  // The input of `out`: saved, or computed again in scratch.
  virtual TensorView middle(LayerContext& ctx, const LayerTensors& t, ScratchArena& arena) const = 0;
  [[nodiscard]] virtual bool saves_middle() const = 0;
  // Computes the gradient of the result of `in` from the gradient of the middle.
  virtual void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView in_gradient, TensorView gradient) const = 0;

  void run_in(LayerContext& ctx, std::span<const TensorView> weights, TensorView result, TensorView x, TensorView statistics,
              ScratchArena arena) const;
  // For one generated position, in scratch: the norms of q and k, and everything after the middle.
  void norm_position(LayerContext& ctx, std::span<const TensorView> weights, TensorView qkv, ScratchArena arena) const;
  void add_position(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView middle, TensorView x,
                    ScratchArena arena) const;
  [[nodiscard]] std::uint64_t norm_position_bytes() const;
  [[nodiscard]] std::uint64_t add_position_bytes() const;
  // Scratch for the middle or its gradient.
  [[nodiscard]] TensorView take_middle(ScratchArena& arena, std::int64_t rows) const;
  [[nodiscard]] TensorView take_statistics(ScratchArena& arena, std::int64_t rows) const;
  // The bytes of take_middle(), and of run_in().
  [[nodiscard]] std::uint64_t middle_bytes(std::int64_t rows) const;
  [[nodiscard]] std::uint64_t in_bytes(std::int64_t rows) const { return bytes_of<In>(*this, rows); }

  [[nodiscard]] bool in_tiles() const { return branch_tiles_ > 1; }
  [[nodiscard]] bool norms_result() const { return bool{result_norm_}; }
  // Generation in tiles. Between its phases, the result of `in` and the middle are in these tensors of the cache; `middle`
  // makes one from the other. With a norm of the result, the cache's last tensor holds the result, too.
  void decode_in_tiles(CallSteps& steps, std::size_t in_cache, std::size_t middle_cache, const CallSteps::Run& middle) const;

 private:
  std::uint32_t branch_tiles_;

 protected:
  Norm norm_;

 private:
  QueryKeyNorm query_key_norm_;
  std::vector<std::uint32_t> in_biases_, out_biases_;  // only in tiles: positions of the biases in params()

 protected:
  Projection in_, out_;  // without tiles

 private:
  ResultNorm result_norm_;
  LowRank in_adapters_, out_adapters_;
  enum Carried : std::size_t { kDin, kDnormed, kDout };  // kDout only in pieces; the further norms' follow
  // What the further norms saved and carried, among the tensors of a call.
  struct SavedOfNorms {
    std::span<const TensorView> query_key;
    ResultNorm::Saved result;
  };
  [[nodiscard]] SavedOfNorms saved_of_norms(const LayerTensors& t) const;
  [[nodiscard]] std::span<const TensorView> carried_of_query_key(const LayerTensors& t) const;
  // The norms of q and k, in scratch that the phase does not need any more. `sums`: those of all ranks, if norms go across
  // ranks; take_in_result() has then run already.
  void norm_in_result(LayerContext& ctx, const LayerTensors& t, TensorView result, ScratchArena arena,
                      TensorView sums = {}) const;
  void norm_in_result_grad(LayerContext& ctx, const LayerTensors& t, ScratchArena arena, TensorView sums = {}) const;
  // For norms of q and k across ranks: the working tensors with this rank's part of the sums, and with the sums of all ranks.
  struct NormSums {
    std::uint32_t here = 0, all = 0;
  };
  [[nodiscard]] bool norms_across() const { return query_key_norm_.across(); }
  [[nodiscard]] PhaseExchange sum_of(const NormSums& sums, BatchShape shape) const;
  [[nodiscard]] Phase in_result_grad_phase(const NormSums& sums) const;
  void norm_across(CallSteps& steps, BatchShape shape, const NormSums& sums, std::uint32_t room) const;
  void norm_grad_across(CallSteps& steps, BatchShape shape, const NormSums& sums) const;
  void add_result(CallSteps& steps, BatchShape shape) const;
  void take_in_result(LayerContext& ctx, const LayerTensors& t, TensorView result, const NormSums& sums) const {
    query_key_norm_.take(ctx, result, saved_of_norms(t).query_key, t.work[sums.here]);
  }
  void take_in_result_grad(LayerContext& ctx, const LayerTensors& t, const NormSums& sums) const {
    query_key_norm_.take_grad(ctx, t.weights, t.carried[kDin], saved_of_norms(t).query_key, carried_of_query_key(t),
                              t.work[sums.here]);
  }
  [[nodiscard]] std::uint64_t query_key_bytes(std::int64_t rows) const;
  [[nodiscard]] std::vector<PhaseParam> norm_params() const { return params_of(norm_, query_key_norm_); }
  // Runs `out` and its adapters.
  void run_out_product(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView middle,
                       Accumulate accumulate, ScratchArena arena) const;
  // `saved`: where the norm of the result keeps its tensors.
  void run_out(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView middle, TensorView x,
               const ResultNorm::Saved& saved, ScratchArena arena) const;
  // The gradient of all rows of the result of `out`: dy itself without a norm of the result.
  [[nodiscard]] TensorView dresult(const LayerTensors& t) const {
    return on_shares() ? t.carried[kDout] : result_norm_ ? t.carried.back() : t.dy;
  }
  void norm_result_weight_grad(LayerContext& ctx, const LayerTensors& t) const;
  // The scratch of a phase.
  struct In {
    In(const ResidualBranch& layer, ScratchArena& arena, std::int64_t rows);
    TensorView normed;
    Projection::Whole weights;
    LowRank::Room adapters;
  };
  struct InInput {
    InInput(const ResidualBranch& layer, ScratchArena& arena, std::int64_t rows);
    Projection::Whole weights;
    LowRank::Room adapters;
  };
  struct InWeight {
    InWeight(const ResidualBranch& layer, ScratchArena& arena, std::int64_t rows);
    TensorView normed, statistics;
    Projection::Whole gradient;
    LowRank::GradientRoom adapters;
  };

  std::vector<std::uint32_t> declare_biases(const std::string& prefix, const ProjectionParts& parts,
                                            const std::vector<std::int64_t>& widths, const std::vector<std::uint32_t>& ways);
  // Whether the phase before the middle computes it, too.
  [[nodiscard]] bool middle_at_once() const { return begins_middle(LayerCall::forward).empty(); }
  [[nodiscard]] double product_flops(std::int64_t rows,
                                     std::int64_t width) const {  // `width`: outputs of `in`, or inputs of `out`
    return 2 * static_cast<double>(rows * config_.hidden) * static_cast<double>(width);
  }
  [[nodiscard]] double middle_flops(BatchShape shape) const;
  // With each product in one phase (residual_whole.cpp).
  void forward_whole(CallSteps& steps, BatchShape shape) const;
  void in_whole(CallSteps& steps, BatchShape shape) const;
  void out_whole(CallSteps& steps, BatchShape shape) const;
  void backward_whole(CallSteps& steps, BatchShape shape) const;
  void out_input_whole(CallSteps& steps, BatchShape shape) const;
  void in_input_whole(CallSteps& steps, BatchShape shape) const;
  void weights_whole(CallSteps& steps, BatchShape shape) const;
  void out_input(LayerContext& ctx, const LayerTensors& t) const;
  void in_input(LayerContext& ctx, const LayerTensors& t, TensorView sums) const;
  void out_weight(LayerContext& ctx, const LayerTensors& t) const;
  void in_weight(LayerContext& ctx, const LayerTensors& t) const;

  [[nodiscard]] RowPieces pieces(CallSteps& steps, const std::string& name, BatchShape shape, bool in_turn) const;
  [[nodiscard]] std::uint32_t lasting(CallSteps& steps, const std::string& name, std::uint64_t bytes) const;
  void add_middle(CallSteps& steps, LayerCall which, BatchShape shape) const;
  void cut_norm(LayerContext& ctx, const LayerTensors& t, const RowPieces& rows, const NormStatistics& statistics) const;
  void forward_in_pieces(CallSteps& steps, BatchShape shape) const;
  void in_in_pieces(CallSteps& steps, BatchShape shape, const RowPieces& rows) const;
  [[nodiscard]] NormSums add_norm_sums(CallSteps& steps, BatchShape shape) const;
  void out_in_pieces(CallSteps& steps, BatchShape shape, const RowPieces& rows) const;
  void backward_in_pieces(CallSteps& steps, BatchShape shape) const;
  void out_input_in_pieces(CallSteps& steps, BatchShape shape, const RowPieces& rows) const;
  void in_input_in_pieces(CallSteps& steps, BatchShape shape, const RowPieces& rows) const;
  void cut_norm_again(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const;
  void out_weight_beside(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const;
  void residual_grad(CallSteps& steps, const RowPieces& rows) const;
  void in_weight_of_pieces(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const;

  void forward_in_tiles(CallSteps& steps, BatchShape shape) const;
  void backward_in_tiles(CallSteps& steps, BatchShape shape) const;
  void out_in_tiles(CallSteps& steps, BatchShape shape) const;
  void out_input_in_tiles(CallSteps& steps, BatchShape shape) const;
  void in_input_in_tiles(CallSteps& steps, BatchShape shape) const;
  void out_weight_in_tiles(CallSteps& steps, BatchShape shape) const;
  void in_weight_in_tiles(CallSteps& steps, BatchShape shape) const;
  [[nodiscard]] Phase out_tile_phase(std::int64_t rows, std::uint32_t tile, bool norms) const;
  void run_out_tile(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile, TensorView result, TensorView x) const;
  void run_adapters(LayerContext& ctx, const LayerTensors& t, const LowRank& adapters, TensorView y, TensorView x) const;
  [[nodiscard]] std::vector<PhaseParam> params_of_tile(const TiledProjection& product, std::uint32_t tile,
                                                       bool with_norm) const;
  [[nodiscard]] std::uint64_t tile_bytes(std::int64_t rows) const;  // 0 without tiles
  [[nodiscard]] std::uint64_t decode_tile_bytes() const;
  [[nodiscard]] TensorView lasting_middle(LayerContext& ctx, const LayerTensors& t, std::uint32_t room, bool first) const;
  [[nodiscard]] Accumulate residual_begun() const { return config_.tensor().leads() ? Accumulate::yes : Accumulate::no; }

  std::optional<TiledProjection> in_tiles_, out_tiles_;
  std::string in_result_;
};

}  // namespace terrace::layers
