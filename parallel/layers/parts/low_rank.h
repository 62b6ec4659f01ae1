// The low-rank adapters of a product with weights (LoRA, Hu et al. 2021): to y = x · Wᵀ they add s · (x · Aᵀ) · Bᵀ, where A is
// [rank, inputs], B is [outputs, rank] and s = alpha ÷ rank. B begins as zeros, so that a new adapter changes nothing.
//
// If the results of a product are several tensors (q, k, v; gate, up), each of them that is named has its own adapter. They are
// computed together: all A's are stacked in one matrix, and all B's are blocks of one matrix that is zero elsewhere.
//
// Tensor ranks that have a part of the product's outputs have the matching rows of B and all of A; ranks that have a part of
// its inputs have the matching columns of A and all of B. In both cases, what a rank adds to y and dx, and its gradient of the
// matrix that all ranks have whole, are parts of sums that the engine computes for the product anyway: an adapter exchanges no
// activation. Ranks in a grid have columns of A and rows of B, and add up the narrow results between them (grid_product.h).
//
// Owner:   a value of its layer.
// Threads: as Layer.
// Errors:  none: shapes follow from the product's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/parallel/layers/parts/projection.h>
#include <terrace/parallel/layers/parts/scratch.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

class LowRank {
 public:
  // One of a product's adjacent results, which may have an adapter.
  struct Result {
    std::string tensor, target;  // its name before ".lora_A", and its name in Adapters::tensors
    std::int64_t outputs;
    model::TensorSplit split = {};  // of the outputs
  };
  LowRank() = default;  // no adapters
  // Appends the parameters of those results that the transformer adapts, as a separate unit.
  LowRank(std::vector<ParamSpec>& params, const std::vector<Result>& results, const Projection& product, std::uint32_t unit,
          const Transformer& config);

  // From here on, a call computes for a tile of the product's outputs, or of its inputs: it uses the tile's rows of B, or
  // columns of A. Tiles of outputs add to one gradient of A, tiles of inputs to one gradient of B. `blocks`: results of equal
  // width that have one B; a tile has rows of each.
  void cut(Projection::Split::Of of, std::uint32_t tiles, std::uint32_t blocks);

  explicit operator bool() const { return !parts_.empty(); }
  void name_params(std::vector<PhaseParam>& of_phase) const;  // appends its parameters

  // The scratch of a call for this many rows; without adapters all views are empty.
  struct Room {
    TensorView a, b, u;  // all A's and all B's, and x · Aᵀ or its gradient
  };
  struct GradientRoom {
    Room forward;
    TensorView du, da, db, one;  // one: the gradient of one B, or of a tile of A
  };
  [[nodiscard]] Room place(ScratchArena& arena, std::int64_t rows) const;
  [[nodiscard]] GradientRoom place_gradient(ScratchArena& arena, std::int64_t rows) const;

  // add() adds to what the product has written: to y from x, or to dx from dy. The room may be for more rows.
  enum class Of : std::uint8_t { x, dy };
  void add(LayerContext& ctx, Tensors weights, const Room& room, Of of, TensorView to, TensorView from,
           std::uint32_t tile) const;
  void weight_grad(LayerContext& ctx, Tensors weights, Tensors gradients, const GradientRoom& room, TensorView dy, TensorView x,
                   Accumulate accumulate, std::uint32_t tile = 0) const;

  // The same in steps. narrow() computes u = s · x · Aᵀ (or du = s · dy · B) in the first rows of `to`; widen() adds u · Bᵀ to
  // y (or du · A to dx). Their rooms need no rows.
  TensorView narrow(LayerContext& ctx, Tensors weights, const Room& room, Of of, TensorView to, TensorView from,
                    std::uint32_t tile = 0) const;
  void widen(LayerContext& ctx, Tensors weights, const Room& room, Of of, TensorView to, TensorView from,
             std::uint32_t tile = 0) const;
  void gradients(LayerContext& ctx, Tensors gradients, const GradientRoom& room, TensorView u, TensorView du, TensorView dy,
                 TensorView x, Accumulate accumulate, std::uint32_t tile = 0) const;
  [[nodiscard]] std::int64_t columns() const { return rank_ * std::ssize(parts_); }  // of u
  [[nodiscard]] std::uint64_t matrix_bytes() const {                                 // of a room without rows
    return measured([&](ScratchArena& arena) { return place(arena, 0); });
  }

 private:
  struct Part {
    std::size_t a = 0, b = 0;  // their places in params()
    std::int64_t first_output = 0, outputs = 0;
  };
  [[nodiscard]] bool is_whole() const { return parts_.size() == 1 && parts_[0].outputs == outputs_ && blocks_ == 1; }
  [[nodiscard]] TensorView all_a(LayerContext& ctx, Tensors weights, const Room& room, std::uint32_t tile) const;
  [[nodiscard]] TensorView all_b(LayerContext& ctx, Tensors weights, const Room& room, std::uint32_t tile) const;
  // The tile's rows of a B, or of its gradient, and their place among the tile's outputs, block by block.
  struct RowsOfB {
    TensorView rows;
    std::int64_t output = 0;
  };
  [[nodiscard]] RowsOfB b_of(Tensors tensors, const Part& part_of, std::uint32_t tile, std::uint32_t block) const {
    const auto rows = part_of.outputs / blocks_;
    return {row_slice(tensors[part_of.b], (block * tiles_ + tile % tiles_) * rows, rows), part_of.first_output + block * rows};
  }

  std::vector<Part> parts_;
  std::int64_t rank_ = 0, inputs_ = 0, outputs_ = 0;  // of a tile
  bool cuts_inputs_ = false;
  std::uint32_t tiles_ = 1, blocks_ = 1;  // of outputs
  DType dtype_ = DType::fp32;
  double scale_ = 1;  // s
};

}  // namespace terrace::layers
