// y = x + out(middle(in(norm(x)))): half of a transformer block, where `in` and `out` are products with weights. A derived
// layer defines the middle; the rest of a call is here. Some transformers have norms of q and k after `in`, and a norm of the
// result of `out`, which tensor ranks add up before that norm.
//
// Saved for the backward are the norm's statistics and the result of `in`; the norm's result is recomputed, which costs one
// pass over x. Tensor ranks have a part of the results of `in`, and so of the inputs of `out`.
//
// The two products are written in one of these ways:
//
//   turns   a phase for each tile of the weights and each piece of the rows; at least one (residual_forward.cpp,
//           residual_backward.cpp)
//   grid    blocks of the matrices lie on a grid of tensor ranks (residual_grid.cpp)
//   inner   a phase for each tile of the inner features, which computes both products (residual_inner.cpp)
//
// The branch itself exchanges rows between tensor ranks in a grid, with pieces, and with sequence parallelism if a norm needs
// whole results. Its norms, residuals and their gradients are then computed for this rank's share of the rows.
//
// Owner, threads, errors: as transformer_layer.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/parallel/layers/parts/product.h>
#include <terrace/parallel/layers/parts/query_key_norm.h>
#include <terrace/parallel/layers/parts/result_norm.h>
#include <terrace/parallel/layers/parts/row_pieces.h>
#include <terrace/parallel/layers/parts/transformer_layer.h>

namespace terrace::layers {

class GridProduct;

// A tensor of a call's products: in the scratch of its phase if only one phase uses it, else a working tensor.
class HeldTensor {
 public:
  HeldTensor(CallSteps& steps, const std::string& name, DType dtype, Shape shape, bool several_phases)
      : dtype_(dtype), shape_(shape) {
    if (several_phases && shape.elements() != 0) room_ = steps.room({name, dtype, shape});
  }
  HeldTensor(DType dtype, Shape shape, std::uint32_t room) : dtype_(dtype), shape_(shape), room_(room) {}
  [[nodiscard]] TensorView view(const LayerTensors& t, ScratchArena& arena) const {
    return room_ ? CallSteps::view(t, *room_, shape_) : arena.take(dtype_, shape_);
  }
  [[nodiscard]] std::uint64_t scratch_bytes() const { return room_ ? 0 : scratch_of({{"", dtype_, shape_}}); }
  void use(Phase& phase, Access access) const {
    if (room_) phase.work.push_back({*room_, access});
  }

 private:
  DType dtype_;
  Shape shape_;
  std::optional<std::uint32_t> room_;
};

class ResidualBranch : public TransformerLayer {
 public:
  [[nodiscard]] LayerFacts facts(BatchShape shape) const final;
  [[nodiscard]] std::vector<TensorSpec> cache(std::int64_t capacity) const final;

 protected:
  void describe_call(CallSteps& steps, LayerCall call, BatchShape shape) const final;
  [[nodiscard]] bool on_shares() const final {
    return on_grid() || (!in_inner_tiles() && (config_.tensor().pieces > 1 || (config_.tensor().sequence && result_norm_)));
  }
  [[nodiscard]] bool adds_up() const final { return sums_result() && !config_.tensor().sequence; }
  [[nodiscard]] std::vector<TensorSpec> saved(BatchShape shape) const;
  [[nodiscard]] std::vector<TensorSpec> carried(BatchShape shape) const;
  [[nodiscard]] double forward_flops(BatchShape shape) const;
  // Positions in saved(); a layer's own tensors follow, then those of the further norms. Positions in carried().
  enum Saved : std::size_t { kStatistics, kInResult, kOwn };
  enum Carried : std::size_t { kDnormed, kDin, kDout };  // kDout only on shares; the further norms' follow
  // With products of 8 bits, the input half rounds the gradient of a product's result once for both halves, and carries the
  // codes that the weight half reads (Product::kept_codes). In pieces and in tiles of the inner features, the halves round
  // other rows; with adapters, the matrices have no gradients.
  [[nodiscard]] bool carries_codes() const {
    return config_.products == Products::fp8 && !on_shares() && !in_inner_tiles() && config_.adapters.rank == 0;
  }
  enum CarriedCodes : std::size_t { kOfIn, kOfOut = Product::kKept };
  [[nodiscard]] Tensors carried_codes(const LayerTensors& t, CarriedCodes of) const;
  // In inner tiles, the gradient of the result of `in` is not carried.
  [[nodiscard]] std::size_t dout() const { return in_inner_tiles() ? kDin : kDout; }
  struct Parts {
    std::string_view norm, result_norm;  // names in the block; empty: none
    const ProjectionParts &in, &out;
    std::vector<std::int64_t> in_outputs;  // the width of each result of `in`, in the whole model
    std::vector<std::uint32_t> in_ways;    // number of parts into which tensor ranks split each
    std::int64_t out_inputs;
    std::string in_result;         // its name, for messages
    std::uint32_t tiles = 1;       // number of tiles in which the two products run
    std::uint32_t inner_rows = 0;  // with tiles of the inner features: tiles of the rows; 0: tiles of each product's results
    bool is_attention = false;     // the results of `in` are q, k and v
    std::int64_t skips_from = -1;  // the block whose result is added to x (residual_skip.cpp); −1: none
  };
  ResidualBranch(std::string name, const Transformer& config, std::int64_t block, const Parts& parts);

  // What the derived layer says about its middle. Shapes and contexts that it gets are those of the rows that this rank has in
  // the middle: on a grid, some of the micro-batch's sequences.

  // The result of `in` as it is saved, and the layer's own tensors. saves_in_result(): `in` writes the saved tensor; if not,
  // save_middle() makes what is saved of it.
  [[nodiscard]] virtual std::vector<TensorSpec> saved_of_middle(BatchShape shape) const;
  [[nodiscard]] virtual bool saves_in_result() const { return true; }
  [[nodiscard]] virtual std::vector<TensorSpec> cache_of_middle(std::int64_t) const { return {}; }
  [[nodiscard]] virtual double middle_flops(BatchShape) const { return 0; }
  // Computes what the middle saves, from the result of `in`.
  virtual void save_middle(LayerContext&, const LayerTensors&, TensorView) const {}
  // The input of `out`, by its position in saved(); empty: it is computed again. make_middle() computes it from some rows of
  // the result of `in`, or for a generated position.
  [[nodiscard]] virtual std::optional<std::size_t> saved_middle() const { return std::nullopt; }
  virtual void make_middle(LayerContext& ctx, const LayerTensors& t, TensorView to, TensorView in_result) const = 0;
  // Computes the gradient of the result of `in` from the gradient of the middle.
  virtual void middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView din, TensorView dmiddle) const = 0;
  // The same for some rows, whose result of `in` is not saved.
  virtual void inner_grad(LayerContext&, TensorView, TensorView, TensorView) const {}
  // A middle of several phases has working tensors, the first ones of a call. describe_middle() describes its phases in a
  // forward and in the input half of a backward. The phase before them ends with save_middle() or middle_grad(), which write
  // the working tensors that begins_middle() names. The middle's last phase writes the middle, or the gradient of the result of
  // `in`, where the next phase reads it.
  [[nodiscard]] virtual std::vector<TensorSpec> middle_work(LayerCall, BatchShape) const { return {}; }
  [[nodiscard]] virtual std::vector<std::uint32_t> begins_middle(LayerCall) const { return {}; }
  virtual void describe_middle(CallSteps&, LayerCall, BatchShape) const {}

 private:
  static Product::Tiles tiles_of(const Transformer& config, const Parts& parts, Product::Cut inner_cut);
  [[nodiscard]] bool on_grid() const { return config_.tensor().is_grid(); }
  [[nodiscard]] bool in_inner_tiles() const { return inner_rows_ > 0; }
  [[nodiscard]] BatchShape middle_shape(BatchShape shape) const;
  [[nodiscard]] LayerContext middle_context(const LayerContext& ctx) const;
  // Whether the phase before the middle computes it, too.
  [[nodiscard]] bool middle_at_once() const { return begins_middle(LayerCall::forward).empty(); }
  [[nodiscard]] std::int64_t middle_width() const { return middle_width_ / (on_grid() ? config_.tensor().grid.side : 1); }
  // `width`: outputs of `in`, or inputs of `out`.
  [[nodiscard]] double product_flops(BatchShape shape, std::int64_t width) const {
    return 2 * static_cast<double>(middle_shape(shape).tokens() * config_.hidden) * static_cast<double>(width);
  }
  // Those of products that have operands of 8 bits.
  [[nodiscard]] double float8(double product_flops) const { return config_.products == Products::fp8 ? product_flops : 0; }
  [[nodiscard]] double carried_bytes(BatchShape shape, bool codes) const;  // of the codes, or of the rest
  void count_carried_codes(CallSteps& steps, BatchShape shape) const;
  [[nodiscard]] double flops_at_once(BatchShape shape) const {
    return middle_at_once() ? middle_flops(middle_shape(shape)) : 0;
  }
  void add_middle(CallSteps& steps, LayerCall call, BatchShape shape) const;
  [[nodiscard]] TensorView in_result(const LayerTensors& t, const HeldTensor& held, ScratchArena& arena) const {
    return saves_in_result() ? t.saved[kInResult] : held.view(t, arena);
  }
  [[nodiscard]] HeldTensor held_in_result(CallSteps& steps, BatchShape shape, bool several_phases) const;
  [[nodiscard]] HeldTensor held_middle(CallSteps& steps, BatchShape shape, bool several_phases) const;
  // The middle. If it is not saved, the first phase that uses it computes it.
  [[nodiscard]] TensorView middle_in(LayerContext& ctx, const LayerTensors& t, const HeldTensor& held, ScratchArena& arena,
                                     bool first) const;

  // What the further norms saved and carried, among the tensors of a call.
  struct SavedOfNorms {
    Tensors query_key;
    ResultNorm::Saved result;
  };
  [[nodiscard]] SavedOfNorms saved_of_norms(const LayerTensors& t) const;
  [[nodiscard]] Tensors carried_of_query_key(const LayerTensors& t) const;
  // For norms of q and k across ranks: the working tensors with this rank's part of the sums, and with the sums of all ranks.
  struct NormSums {
    std::uint32_t here = 0, all = 0;
  };
  [[nodiscard]] bool norms_across() const { return query_key_norm_.across(); }
  [[nodiscard]] NormSums add_norm_sums(CallSteps& steps, BatchShape shape) const;
  [[nodiscard]] PhaseExchange sum_of(const NormSums& sums, BatchShape shape) const;
  void norm_across(CallSteps& steps, BatchShape shape, const NormSums& sums, const HeldTensor& result) const;
  void norm_grad_across(CallSteps& steps, BatchShape shape, const NormSums& sums) const;
  void take_in_result(LayerContext& ctx, const LayerTensors& t, TensorView result, const NormSums& sums) const {
    const auto saved = saved_of_norms(t).query_key;
    query_key_norm_.take(ctx, result, saved, saved, {}, t.work[sums.here]);
  }
  void norm_in_result_grad(LayerContext& ctx, const LayerTensors& t, const NormSums& sums) const;
  // The gradient of all rows of the result of `out`: dy itself without a norm of the result.
  [[nodiscard]] TensorView dresult(const LayerTensors& t) const {
    return on_shares() ? t.carried[dout()] : result_norm_ ? t.carried[t.carried.size() - 1 - of_skip()] : t.dy;
  }
  // The gradients of the weights of the result's norm, and of the norms around `in`.
  void norm_result_weight_grad(LayerContext& ctx, const LayerTensors& t) const;
  void norm_weight_grad(LayerContext& ctx, const LayerTensors& t, TensorView statistics) const;
  // Whether tensor ranks, which all have whole rows, add up the result before it is normed.
  [[nodiscard]] bool sums_result() const { return config_.tensor().ranks > 1 && !on_shares() && result_norm_; }
  void add_result(CallSteps& steps, BatchShape shape) const;

  // A skip connection in front of the branch. of_skip(): how many tensors it saves, the last ones, and how many it carries.
  [[nodiscard]] std::size_t of_skip() const { return skips_from_ ? 1 : 0; }
  void declare_skip(const std::string& name, std::uint32_t unit);
  void put_skip_before(CallSteps& steps, LayerCall call) const;
  void add_skip(LayerContext& ctx, TensorView weight, TensorView sum, TensorView x) const;
  void skip_grad(LayerContext& ctx, const LayerTensors& t) const;
  void decode_with_skip(LayerContext& ctx, LayerTensors& t, const CallSteps::Run& inner, bool adds) const;
  [[nodiscard]] std::uint64_t sum_bytes() const;

  // On shares: how results of all rows become this rank's rows of y, or of the gradient of the norm's result.
  using Take = std::function<void(LayerContext&, const LayerTensors&, const TensorView& to, Accumulate how)>;
  void end_forward(CallSteps& steps, std::vector<PhaseWork> work, const Take& take) const;
  void residual_grad(CallSteps& steps, std::vector<PhaseWork> work, const Take& take) const;

  using Calls = Product::Calls;
  // A phase of a product in turns: a tile of its weights, for a piece of the rows.
  struct Turn {
    std::uint32_t tile = 0, piece = 0;
    bool first = true, last = true, last_tile = true;
    [[nodiscard]] Access writes() const { return first ? Access::overwrite : Access::update; }
    [[nodiscard]] Access reads() const { return first ? Access::overwrite : Access::read; }  // the first one writes
  };
  // Calls use(turn) for each tile and, in it, for each piece.
  template <class Use>
  static void each_turn(const Product& product, const RowPieces& rows, Use&& use) {
    for (std::uint32_t tile = 0; tile < product.tiles(); ++tile)
      for (std::uint32_t piece = 0; piece < rows.count(); ++piece) {
        const bool last_piece = piece + 1 == rows.count();
        use(Turn{tile, piece, tile + piece == 0, product.is_last(tile) && last_piece, product.is_last(tile)});
      }
  }
  [[nodiscard]] double turn_flops(BatchShape shape, const Product& product, std::int64_t width, const RowPieces& rows,
                                  const Turn& turn) const {
    return product_flops(shape, width) / product.tiles() * rows.fraction(turn.piece);
  }
  static double turn_rows(BatchShape shape, const RowPieces& rows, const Turn& turn) {
    return static_cast<double>(shape.tokens()) * rows.fraction(turn.piece);
  }
  [[nodiscard]] RowPieces pieces(CallSteps& steps, const std::string& name, BatchShape shape, bool in_turn) const;
  void cut_norm(CallSteps& steps, BatchShape shape, const RowPieces& rows, Half half) const;
  [[nodiscard]] static Take take_of(const RowPieces& rows);
  void forward_in_turns(CallSteps& steps, BatchShape shape) const;
  void in_forward(CallSteps& steps, BatchShape shape, const RowPieces& rows) const;
  void out_forward(CallSteps& steps, BatchShape shape, const RowPieces& rows) const;
  [[nodiscard]] Phase out_phase(const Turn& turn, bool norms) const;
  void run_out(LayerContext& ctx, const LayerTensors& t, const Turn& turn, const RowPieces& rows, TensorView middle,
               const ResultNorm::Saved& saved, bool norms, ScratchArena arena) const;
  void backward_in_turns(CallSteps& steps, BatchShape shape) const;
  void cut_dy(CallSteps& steps, const RowPieces& rows) const;
  void out_input(CallSteps& steps, BatchShape shape, const RowPieces& rows) const;
  void in_input(CallSteps& steps, BatchShape shape, const RowPieces& rows) const;
  void out_weight(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const;
  void in_weight(CallSteps& steps, BatchShape shape, const RowPieces& x_rows) const;

  // On a grid of tensor ranks.
  struct GridCall;
  void forward_on_grid(CallSteps& steps, BatchShape shape) const;
  void backward_on_grid(CallSteps& steps, BatchShape shape) const;
  void grid_products(GridCall& call) const;
  void grid_in(GridCall& call) const;
  [[nodiscard]] bool ends_with_middle() const { return middle_at_once() && !norms_across(); }
  void grid_dout(GridCall& call) const;
  void grid_input(GridCall& call) const;
  void grid_weights(GridCall& call) const;
  void grid_row_tile(GridCall& call, comm::Block rows, bool forward) const;
  static void grid_tile_gradient(GridCall& call, const GridProduct& product, const Product& of,
                                 const std::pair<std::uint32_t, Shape>& dy, comm::Block rows);
  void stage_middle(LayerContext& whole, const LayerTensors& t, TensorView to) const;
  void deal(LayerContext& ctx, TensorView rows, TensorView blocks, Way way, Accumulate accumulate) const;
  [[nodiscard]] Take take_columns(std::uint32_t came) const;
  [[nodiscard]] std::size_t saved_normed(const LayerTensors& t) const;

  // In tiles of the inner features.
  struct Inner;
  void describe_inner(CallSteps& steps, LayerCall call, BatchShape shape) const;
  [[nodiscard]] std::vector<PhaseParam> inner_params(std::uint32_t tile) const;
  void inner_forward(CallSteps& steps, LayerCall call, BatchShape shape, std::uint32_t tile) const;
  void inner_backward(CallSteps& steps, BatchShape shape, std::uint32_t tile) const;
  void run_inner_backward(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile) const;
  template <class Use>
  void each_row_tile(std::int64_t rows, Use&& use) const {
    for (std::uint32_t r = 0; r < inner_rows_; ++r)
      if (const auto block = comm::block_of(rows, static_cast<int>(r), static_cast<int>(inner_rows_)); block.count > 0)
        use(block);
  }

  // Generation: norm and `in`, and the norms of q and k, of one position.
  struct Position;
  void describe_decode(CallSteps& steps) const;
  void decode_in_tiles(CallSteps& steps) const;
  void in_position(LayerContext& ctx, const LayerTensors& t, std::uint32_t tile, TensorView result, ScratchArena arena) const;
  void norm_position(LayerContext& ctx, Tensors weights, TensorView qkv, ScratchArena arena) const;
  [[nodiscard]] std::uint64_t decode_bytes() const;

  std::optional<std::uint32_t> skips_from_;  // a layer
  std::uint32_t skip_weight_ = 0;
  std::uint32_t inner_rows_;
  std::int64_t middle_width_;  // in the whole model
  std::string in_result_;
  Norm norm_;
  QueryKeyNorm query_key_norm_;
  Product in_, out_;
  ResultNorm result_norm_;
};

}  // namespace terrace::layers
