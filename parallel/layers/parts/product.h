// A product of a branch with its biases and adapters: y = x · W + b + s · (x · Aᵀ) · Bᵀ, whole or in tiles. A call computes one
// tile, so it needs 1/T of the weights (ZeRO-Infinity's memory-centric tiling, Rajbhandari et al. 2021, section 5.1.3).
//
//   columns   a tile is some columns of each result; y has all columns, and the tile's are written or added
//   outputs   a tile is some columns of each result, and y has no others; a tensor of several results has equal ones
//   inputs    a tile is some columns of x, which has no others; y is a sum over the tiles
//
// A product in tiles declares its biases, which are small and not cut, apart from its matrices. Adapters are cut as the product
// is; with `columns` they are small, too, and belong to the last tile.
//
// Owner, threads, errors: as Projection.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/parallel/layers/parts/low_rank.h>
#include <terrace/parallel/layers/parts/projection.h>

namespace terrace::layers {

class Product {
 public:
  enum class Cut : std::uint8_t { columns, outputs, inputs };
  struct Tiles {
    Cut cut = Cut::columns;
    std::uint32_t count = 1;
    bool apart = false;  // its matrices are a unit, and its biases are outside it; true if there are several tiles
  };
  struct Spec {
    std::string prefix;  // of the parameters' names
    ProjectionParts parts;
    std::vector<std::int64_t> outputs;  // outputs and inputs in the whole model
    std::int64_t inputs = 0;
    Projection::Split split = {};
    double init_std = 0;
    Tiles tiles = {};
  };
  // The two products of a branch or of an expert: tensor ranks split the results of the first, so the inputs of the second.
  static Spec first_of(std::string prefix, const ProjectionParts& parts, std::vector<std::int64_t> outputs,
                       std::vector<std::uint32_t> ways, const Transformer& config, const Tiles& tiles);
  static Spec second_of(std::string prefix, const ProjectionParts& parts, std::int64_t inputs, const Transformer& config,
                        const Tiles& tiles);
  // Declares the biases, if they are apart; declare() then declares the matrices, and adapt() the adapters.
  Product(std::vector<ParamSpec>& params, Spec spec, const Transformer& config);
  void declare(std::vector<ParamSpec>& params, std::uint32_t unit, const Transformer& config);
  void adapt(std::vector<ParamSpec>& params, std::uint32_t unit, const Transformer& config);
  void adapt(std::vector<ParamSpec>& params, const std::vector<LowRank::Result>& results, std::uint32_t unit,
             const Transformer& config);

  [[nodiscard]] const Projection& projection() const { return whole_; }
  [[nodiscard]] const LowRank& low_rank() const { return adapters_; }
  [[nodiscard]] std::uint32_t tiles() const { return spec_.tiles.count; }
  [[nodiscard]] bool is_last(std::uint32_t tile) const { return tile + 1 == tiles(); }
  [[nodiscard]] bool is_apart() const { return spec_.tiles.apart; }
  // Of this rank, over all tiles; and of a tile.
  [[nodiscard]] std::int64_t outputs() const { return whole_.outputs(); }
  [[nodiscard]] std::int64_t inputs() const { return whole_.inputs(); }
  [[nodiscard]] const Projection& tile() const { return tile_; }
  // What a phase uses that computes a tile: its parameters, and the adapters among them.
  [[nodiscard]] std::vector<PhaseParam> params(std::uint32_t tile) const;
  [[nodiscard]] std::vector<PhaseParam> adapters(std::uint32_t tile) const;

  // What the calls of a phase use, prepared once.
  struct Ready {
    Tensors params = {};
    std::uint32_t tile = 0;
    Projection::Whole weights = {};
    TensorView columns = {},
               bias = {};  // scratch for the tile's columns of y or dy, and for a bias that comes from several tensors
    LowRank::GradientRoom adapters = {};
  };
  using Calls = Projection::Calls;
  // `rows`: the most of a call; `calls`: those that follow.
  [[nodiscard]] Ready prepare(LayerContext& ctx, Tensors weights, std::uint32_t tile, std::int64_t rows, ScratchArena& arena,
                              Calls calls) const;
  void forward(LayerContext& ctx, const Ready& ready, TensorView y, TensorView x, Accumulate accumulate) const;
  // With tiles of results, dx is a sum over the tiles, which the first one writes. `kept`: tensors of kept_codes(), or empty.
  void input_grad(LayerContext& ctx, const Ready& ready, TensorView dx, TensorView dy, Tensors kept = {}) const;
  void weight_grad(LayerContext& ctx, Tensors weights, Tensors gradients, std::uint32_t tile, TensorView dy, TensorView x,
                   Accumulate accumulate, ScratchArena arena, Tensors kept = {}) const;
  // With products of 8 bits, input_grad() may keep the codes of the transposed dy, so that weight_grad() need not round it: the
  // tensors for all tiles, with as many rows of dy in each call.
  static constexpr std::size_t kKept = 2;
  [[nodiscard]] std::vector<TensorSpec> kept_codes(const std::string& of, std::int64_t rows) const;
  // For tiles of inputs: weight_grad() leaves out the gradient of the bias, which does not depend on the tile.
  void bias_grad(LayerContext& ctx, Tensors gradients, TensorView dy, Accumulate accumulate) const;
  // The scratch of prepare(), and of weight_grad(), which may get kept codes.
  [[nodiscard]] std::uint64_t scratch_bytes(std::uint32_t tile, std::int64_t rows, Calls calls) const;
  [[nodiscard]] std::uint64_t gradient_bytes(std::uint32_t tile, std::int64_t rows, bool kept = false) const;
  // What rounding to 8 bits moves outside scratch for a tile: weights, and so many rows of x and of dy. `keeps`: dy's codes.
  [[nodiscard]] double rounding_bytes(bool weights, double rows_of_x, double rows_of_dy, bool keeps = false) const;

 private:
  [[nodiscard]] Ready place(std::uint32_t tile, std::int64_t rows, ScratchArena& arena, Calls calls, bool kept = false) const;
  [[nodiscard]] Float8Matrix of_tile(Tensors kept, std::uint32_t tile) const;
  [[nodiscard]] bool in_columns() const { return tiles() > 1 && spec_.tiles.cut == Cut::columns; }
  [[nodiscard]] bool of_inputs() const { return spec_.tiles.cut == Cut::inputs; }
  // Results in one tensor, if a tile has columns of each: they are not adjacent in it.
  [[nodiscard]] std::uint32_t fused() const {
    const bool several = tiles() > 1 && spec_.tiles.cut == Cut::outputs && spec_.parts.tensors.size() == 1;
    return several ? static_cast<std::uint32_t>(spec_.outputs.size()) : 1;
  }
  [[nodiscard]] bool adapts(std::uint32_t tile) const { return !in_columns() || is_last(tile); }
  // Calls move(first column in the whole, first column in the tile, count) for each run of the tile's columns.
  template <class Move>
  void each_run(std::uint32_t tile, Move&& move) const;
  // Calls use(the tile's part of a bias, its first column in the tile) for each tensor.
  template <class Use>
  void each_bias(Tensors tensors, std::uint32_t tile, Use&& use) const;
  // The tile's columns of dy, copied if dy has those of all tiles.
  [[nodiscard]] TensorView own_columns(LayerContext& ctx, const Ready& ready, const TensorView& dy) const;
  [[nodiscard]] TensorView bias_of(LayerContext& ctx, const Ready& ready) const;
  void tile_bias_grad(LayerContext& ctx, Tensors gradients, std::uint32_t tile, TensorView place, TensorView dy,
                      Accumulate accumulate) const;

  Spec spec_;
  DType dtype_;
  std::vector<std::uint32_t> biases_;  // positions in params() of biases that are apart
  bool float8_;                        // multiplies operands of 8 bits
  bool adds_bias_;                     // false: another tensor rank adds them
  Projection whole_, tile_;
  LowRank adapters_;
};

}  // namespace terrace::layers
