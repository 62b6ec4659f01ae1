// A linear map: y = x · W (+ b), with the transformer's names, order of matrices and biases.
//
// Several matrices that read the same x (q, k, v; gate, up) are one product. The layout packs a layer's tensors back to back
// at multiples of 64 elements, so they are one matrix in memory when their sizes are such multiples; otherwise they are copied
// together in scratch first (and their gradient is made there), which gives the same bits. The same holds for their biases.
//
// Owner:   a value of its layer.
// Threads: as Layer.
// Errors:  std::logic_error for tensors that are not packed as the layout packs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/parallel/layers/parts/float8_matrix.h>
#include <terrace/parallel/layers/parts/scratch.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

class Projection {
 public:
  // What tensor ranks split: each result, or the inputs. If they split the inputs, each rank's result is a part of a sum, to
  // which one rank adds the bias.
  struct Split {
    enum class Of : std::uint8_t { outputs, inputs } of = Of::outputs;
    std::vector<std::uint32_t> ways = {};  // number of parts: of each result, or of the inputs
  };
  Projection() = default;  // no product
  // Appends its parameters, named `prefix` + the tensors' names: all .weight, then all .bias. `outputs`: the width of each
  // result in the whole model. Each result has its own tensor, or all are in one.
  Projection(std::vector<ParamSpec>& params, const std::string& prefix, const ProjectionParts& parts,
             std::vector<std::int64_t> outputs, std::int64_t inputs, const Split& split, double init_std,
             const Transformer& config);
  // Uses the one matrix that is already declared as the last of `params`: always [outputs, inputs], without bias.
  static Projection declared(const std::vector<ParamSpec>& params, DType dtype);

  // All results' weights as one matrix and one bias; an empty bias if there is none. To multiply numbers of 8 bits, it also has
  // the matrix rounded to them, and room for the other operand, or for both of weight_grad(); if `room` is empty, it multiplies
  // in the dtype.
  struct Whole {
    TensorView matrix, bias;
    Float8Matrix codes = {};
    TensorView room = {};
  };
  // The calls for which weights are prepared, and scratch is placed; both: forward() and input_grad().
  enum class Calls : std::uint8_t { forward, input_grad, both, weight_grad };
  // Adds to `place` what calls with at most so many rows need to multiply numbers of 8 bits. `kept`: weight_grad() gets the
  // codes of dy.
  void place_float8(ScratchArena& arena, Whole& place, std::int64_t rows, Calls calls, bool kept) const;
  [[nodiscard]] std::int64_t outputs() const;  // outputs and inputs of this rank
  [[nodiscard]] std::int64_t inputs() const { return inputs_; }
  [[nodiscard]] const std::vector<std::int64_t>& widths() const { return outputs_; }  // of each tensor's results
  // How tensor ranks split the results of each tensor, and the inputs: as rows, and as columns, of a matrix [outputs, inputs].
  [[nodiscard]] const std::vector<model::TensorSplit>& output_splits() const { return output_splits_; }
  [[nodiscard]] const model::TensorSplit& input_split() const { return input_split_; }
  // Appends its parameters, or the phase's tile of them.
  void name_params(std::vector<PhaseParam>& of_phase, std::uint32_t tile = 0) const;
  // Cuts its matrices, which have no bias, into tiles of their outputs or inputs. From then on this is the product of one tile.
  // `parts`: results of equal width in a matrix, of each of which a tile has some columns.
  void cut(std::vector<ParamSpec>& params, Split::Of of, std::uint32_t tiles, std::uint32_t parts);
  // Scratch for the weights and for their gradient; empty views where none is needed.
  [[nodiscard]] Whole place(ScratchArena& arena, DType dtype) const;
  // `place`: the result of place(). prepare() fills it once for all products of a call and returns the weights to use.
  [[nodiscard]] Whole prepare(LayerContext& ctx, Tensors weights, const Whole& place) const;
  void forward(LayerContext& ctx, const Whole& weights, MatrixView y, TensorView x,
               Accumulate accumulate = Accumulate::no) const;
  // `kept`: where the codes of the transposed dy are written for weight_grad(); empty: nowhere.
  void input_grad(LayerContext& ctx, const Whole& weights, TensorView dx, MatrixView dy, Accumulate accumulate = Accumulate::no,
                  const Float8Matrix& kept = {}) const;
  // For tensor ranks in a grid, which exchange blocks: pack() puts the tensors of all results one after the other;
  // add_gradient() adds gradients in the same order; gradient_product() computes a whole gradient.
  [[nodiscard]] bool has_bias() const { return bias_; }
  [[nodiscard]] bool out_in() const { return out_in_; }
  void pack(LayerContext& ctx, Tensors weights, const Whole& to) const;
  void add_gradient(LayerContext& ctx, Tensors gradients, const Whole& from, Accumulate accumulate) const;
  void gradient_product(LayerContext& ctx, TensorView to, const MatrixView& dy, const MatrixView& x, Accumulate accumulate,
                        const TensorView& room = {}, const Float8Matrix& kept = {}) const;
  // Computes the whole gradient, then writes or adds it; nothing for frozen matrices and biases, whose gradients are empty.
  // Either all matrices of a product are frozen or none is, and likewise its biases. `place`: the result of place(); `kept`:
  // what input_grad() kept of this dy, or empty.
  void weight_grad(LayerContext& ctx, Tensors gradients, const Whole& place, MatrixView dy, TensorView x, Accumulate accumulate,
                   const Float8Matrix& kept = {}) const;

 private:
  // True if the tensors, with `width` elements for each output, are adjacent; this follows from their sizes.
  [[nodiscard]] bool adjacent(std::int64_t width) const;
  [[nodiscard]] Tensors matrices(Tensors tensors) const;
  [[nodiscard]] Tensors biases(Tensors tensors) const;

  std::size_t first_ = 0;
  std::vector<std::int64_t> outputs_;  // outputs of each tensor
  std::int64_t inputs_ = 0;            // outputs_ and inputs_ are those of this rank
  std::vector<model::TensorSplit> output_splits_;
  model::TensorSplit input_split_;
  bool out_in_ = true, bias_ = false;
  bool adds_bias_ = true;  // false: another tensor rank does
  DType dtype_ = DType::fp32;
};

}  // namespace terrace::layers
