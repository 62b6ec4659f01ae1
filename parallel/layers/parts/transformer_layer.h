// The base of a transformer's layers: name, parameters, and the checks of a call's views.
//
// Views that a phase does not use are empty.
//
// The input half of a backward gets x, saved, dy, dx and carried; the weight half gets x, saved, dy, gradients and carried.
// Half::both gets all of them and runs the halves one after the other, so that it gives the same bits.
//
// Owner:   the model owns its layers.
// Threads: as Layer.
// Errors:  std::logic_error for views that do not match the layer's own specification; if the layer cannot be built, those of
//          transformer.h.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/parallel/layers/parts/norm.h>
#include <terrace/parallel/layers/parts/projection.h>
#include <terrace/parallel/layers/parts/scratch.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

class TransformerLayer : public GenerativeLayer {
 public:
  [[nodiscard]] std::string name() const final { return name_; }
  [[nodiscard]] std::vector<ParamSpec> params() const final;
  [[nodiscard]] std::vector<TensorSpec> cache(std::int64_t) const override { return {}; }
  void describe(CallSteps& steps, LayerCall call, BatchShape shape) const final;

 protected:
  // The first layer has no x, the last one no y.
  struct Ends {
    bool x = true, y = true;
  };
  TransformerLayer(std::string name, const Transformer& config, Ends ends = {.x = true, .y = true})
      : config_(checked(config)), name_(std::move(name)), ends_(ends) {}

  // describe() without the exchanges at the edges of the call, and without the checks.
  virtual void describe_call(CallSteps& steps, LayerCall call, BatchShape shape) const = 0;
  // With sequence parallelism: whether it reads and writes only this rank's rows of x, y and their gradients, and makes all
  // exchanges within its call.
  [[nodiscard]] virtual bool on_shares() const { return false; }
  // On tensor ranks: whether its y is whole because it sums the ranks' parts itself. Its dx is still a part.
  [[nodiscard]] virtual bool adds_up() const { return false; }

  // The parameters of some of its parts, for a phase.
  template <class... Parts>
  [[nodiscard]] static std::vector<PhaseParam> params_of(const Parts&... parts) {
    std::vector<PhaseParam> all;
    (parts.name_params(all), ...);
    return all;
  }
  [[nodiscard]] std::int64_t rows_of(BatchShape shape) const {  // of x and y
    return on_shares() ? shape.tokens() / config_.tensor().ranks : shape.tokens();
  }
  // Throws std::logic_error that names the layer and the view.
  void check(const char* what, const TensorView& view, DType dtype, Shape shape) const;
  void check_weights(const LayerContext& ctx, Tensors weights) const;
  // Tiles of the vocabulary's table. has_token(): the rows of a tile that have a token, counted in the whole vocabulary.
  // rows_with_token(): these rows of `table`, which is the whole table or already the phase's tile.
  [[nodiscard]] std::uint32_t tiles() const { return config_.vocab_tiles; }
  [[nodiscard]] bool is_last(std::uint32_t tile) const { return tile + 1 == tiles(); }
  [[nodiscard]] bool is_whole() const { return config_.tensor().ranks == 1 && tiles() == 1; }  // the table is in one part
  [[nodiscard]] comm::Block has_token(std::uint32_t number) const;
  [[nodiscard]] TensorView rows_with_token(const LayerContext& ctx, const TensorView& table, std::uint32_t number) const;
  // Rows of the table on a rank, and of its longest tile. On ranks other than the first one, the last row may have no token;
  // all ranks reserve room for it and count its products, so that their plans are equal.
  [[nodiscard]] std::int64_t table_rows() const { return ceil_div(config_.vocab, std::int64_t{config_.tensor().ranks}); }
  [[nodiscard]] std::int64_t tile_rows() const { return comm::block_of(table_rows(), 0, static_cast<int>(tiles())).count; }
  // Declares the table of the vocabulary, or this rank's rows of it; the last of these may have no token.
  [[nodiscard]] static ParamSpec table_of(const Transformer& config, std::string_view name);
  // Zeroes the gradient of the tile's rows without a token.
  void zero_rest(LayerContext& ctx, const TensorView& gradient, std::uint32_t number) const;
  // Begins the result of a residual layer, or the gradient of its input: to = from on the tensor rank that adds the residual.
  // Returns how the rest must be written to `to`.
  Accumulate begin_residual(LayerContext& ctx, TensorView to, TensorView from) const;
  // Calls f for each run of this rank's positions within a document, with its rows in the micro-batch and its positions in the
  // document.
  template <class F>
  void each_run(const LayerContext& ctx, F&& f) const {
    std::int64_t row = 0;
    for (std::int64_t b = 0; b < ctx.shape.batch; ++b)
      for (const auto& run : config_.context().runs(ctx.shape.seq))
        for (const auto& piece : ctx.documents.pieces(b, run)) {
          f(comm::Block{row, piece.count}, comm::Block{piece.begin - piece.document, piece.count});
          row += piece.count;
        }
  }
  // Copies `count` columns of `whole`, from `first` on, into those of `block` from `at` on; or back.
  enum class Way : std::uint8_t { pack, unpack };
  static void move_columns(LayerContext& ctx, Way way, TensorView whole, std::int64_t first, TensorView block, std::int64_t at,
                           std::int64_t count, Accumulate how = Accumulate::no) {
    way == Way::pack ? ctx.math.columns(ctx.stream, block, at, whole, first, count, how)
                     : ctx.math.columns(ctx.stream, whole, first, block, at, count, how);
  }
  [[noreturn]] void fail(const std::string& what) const;

  const Transformer config_;
  std::vector<ParamSpec> params_;

 private:
  [[nodiscard]] TensorView tile(const LayerContext& ctx, const TensorView& table, std::uint32_t number) const;
  void check_call(const LayerContext& ctx, const LayerTensors& t, LayerCall call, const LayerFacts& facts) const;
  void check_gradients(const LayerContext& ctx, Tensors gradients) const;
  void check_all(const LayerContext& ctx, const char* what, Tensors views, const std::vector<TensorSpec>& specs) const;
  // A phase does not use all tensors of its call.
  [[nodiscard]] static bool may_lack(const LayerContext& ctx, const TensorView& view) {
    return ctx.phase != kAllPhases && view.empty();
  }

  std::string name_;
  Ends ends_;
};

}  // namespace terrace::layers
