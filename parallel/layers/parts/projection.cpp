#include <algorithm>
#include <numeric>
#include <stdexcept>

#include <terrace/core/math/float8.h>
#include <terrace/parallel/layers/parts/grid_cut.h>
#include <terrace/parallel/layers/parts/projection.h>

namespace terrace::layers {
namespace {

constexpr std::int64_t kPackElements = 64;  // the layout's alignment of a layer's tensors

// Views adjacent tensors as one tensor. A single tensor keeps its own shape.
TensorView joined(Tensors tensors, Shape shape) {
  if (tensors.size() == 1) return tensors[0];
  const std::byte* expected = tensors[0].data;
  for (const TensorView& tensor : tensors) {
    if (tensor.data != expected)
      throw std::logic_error("a layer's tensors must be packed back to back (each at a multiple of 64 elements)");
    expected += tensor.bytes();
  }
  return {tensors[0].data, tensors[0].dtype, shape};
}

bool is_frozen(Tensors gradients) {
  const auto frozen = std::ranges::count_if(gradients, &TensorView::empty);
  if (frozen != 0 && frozen != std::ssize(gradients))
    throw std::logic_error("a product has frozen tensors and others: freeze all or none of them");
  return frozen != 0;
}

// Calls use(tensor, its part of `whole`); the tensors follow each other in `whole`.
template <class F>
void each_part(Tensors tensors, const TensorView& whole, F&& use) {
  std::int64_t first = 0;
  for (const TensorView& tensor : tensors) {
    use(tensor, part(whole, first, tensor.shape));
    first += tensor.elements();
  }
}

// Where the operands of a product lie that are rounded to 8 bits: c[m,n] = op(a)[m,k] · op(b)[k,n].
struct Float8Operands {
  Float8Operands(ScratchArena arena, std::int64_t m, std::int64_t n, std::int64_t k, DType of_a, DType of_b)
      : a(arena.take(of_a, {m, math::float8_columns(k)})),
        b(arena.take(of_b, {n, math::float8_columns(k)})),
        scales(arena.take(DType::fp32, {2})),
        bytes(arena.peak_bytes()) {}
  TensorView a, b, scales;
  std::uint64_t bytes;
};

// Activations and weights have the format with more leading bits, gradients the one with more exponents.
constexpr DType kValues = DType::e4m3, kGradients = DType::e5m2;

// c (+)= op(a) · op(b) + bias: in their dtype, or rounded to 8 bits in the scratch `codes`.
void multiply(LayerContext& ctx, const TensorView& codes, const MatrixView& c, const MatrixView& a, Transpose ta, DType of_a,
              const MatrixView& b, Transpose tb, DType of_b, const TensorView& bias, Accumulate accumulate) {
  if (codes.empty()) return ctx.math.matmul(ctx.stream, c, a, ta, b, tb, bias, accumulate);
  const auto k = ta == Transpose::yes ? rows_of(a) : columns_of(a);
  const Float8Operands to(ScratchArena(codes), rows_of(c), columns_of(c), k, of_a, of_b);
  const auto scale_a = part(to.scales, 0, {1}), scale_b = part(to.scales, 1, {1});
  ctx.math.quantise(ctx.stream, to.a, scale_a, a, ta);
  ctx.math.quantise(ctx.stream, to.b, scale_b, b, tb == Transpose::yes ? Transpose::no : Transpose::yes);
  ctx.math.matmul_float8(ctx.stream, c, to.a, to.b, scale_a, scale_b, bias, accumulate);
}

}  // namespace

Projection::Projection(std::vector<ParamSpec>& params, const std::string& prefix, const ProjectionParts& parts,
                       std::vector<std::int64_t> outputs, std::int64_t inputs, const Split& split, double init_std,
                       const Transformer& config)
    : first_(params.size()),
      out_in_(config.matrices == MatrixOrder::out_in),
      bias_(parts.bias),
      adds_bias_(config.tensor().is_grid() || split.of == Split::Of::outputs || config.tensor().leads()),
      dtype_(config.dtype) {
  const auto& tensors = parts.tensors;
  if ((tensors.size() != 1 && tensors.size() != outputs.size()) || (tensors.size() != 1 && !out_in_))
    throw std::logic_error("Projection: one tensor, or one for each result if these are rows");
  const bool by_outputs = split.of == Split::Of::outputs;
  const std::uint32_t output_dim = out_in_ ? 0 : 1, input_dim = 1 - output_dim;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool all = tensors.size() == 1;  // one tensor has all results, side by side
    const auto its_outputs = all ? outputs : std::vector{outputs[i]};
    const auto whole = std::accumulate(its_outputs.begin(), its_outputs.end(), std::int64_t{0});
    model::TensorSplit matrix, bias{.dim = 0};
    if (config.tensor().is_grid()) {
      const GridCut cut(config.tensor(), by_outputs);
      matrix = cut.of_matrix(output_dim, its_outputs);
      bias = cut.of_bias(its_outputs);
      input_split_ = cut.of_inputs(inputs);
    } else if (config.tensor().ranks > 1 && by_outputs) {
      matrix = {.dim = output_dim, .parts = its_outputs, .ways = split.ways[i]};
      bias = {.dim = 0, .parts = its_outputs, .ways = split.ways[i]};
    } else if (config.tensor().ranks > 1) {
      matrix = {.dim = input_dim, .parts = {inputs}, .ways = split.ways[0]};
      input_split_ = {.dim = 1, .parts = {inputs}, .ways = split.ways[0]};
    }
    const Shape shape = model::part_shape(out_in_ ? Shape{whole, inputs} : Shape{inputs, whole}, matrix);
    outputs_.push_back(shape[output_dim]);
    inputs_ = shape[input_dim];
    params.push_back(
        {.name = weight_name(prefix + tensors[i]), .shape = shape, .init = {InitKind::normal, init_std}, .split = matrix});
    output_splits_.push_back(bias);
  }
  for (std::size_t i = 0; bias_ && i < tensors.size(); ++i)
    params.push_back({.name = bias_name(prefix + tensors[i]),
                      .shape = {outputs_[i]},
                      .init = {},
                      .decay = false,
                      .split = output_splits_[i]});
}

Projection Projection::declared(const std::vector<ParamSpec>& params, DType dtype) {
  Projection matrix;
  matrix.first_ = params.size() - 1;
  matrix.outputs_ = {params.back().shape[0]};
  matrix.inputs_ = params.back().shape[1];
  matrix.dtype_ = dtype;
  return matrix;
}

std::int64_t Projection::outputs() const { return std::accumulate(outputs_.begin(), outputs_.end(), std::int64_t{0}); }

void Projection::name_params(std::vector<PhaseParam>& of_phase, std::uint32_t tile) const {
  for (std::size_t p = 0; p < outputs_.size() * (bias_ ? 2 : 1); ++p)
    of_phase.push_back({static_cast<std::uint32_t>(first_ + p), tile});
}

void Projection::cut(std::vector<ParamSpec>& params, Split::Of of, std::uint32_t tiles, std::uint32_t parts) {
  if (bias_) throw std::logic_error("Projection: tiles have no bias");
  const bool outputs = of == Split::Of::outputs;
  for (std::size_t p = first_; p < first_ + outputs_.size(); ++p) {
    params[p].tiles = tiles;
    params[p].tile_dim = outputs == out_in_ ? 0 : 1;
    params[p].tile_parts = parts;
  }
  if (outputs)
    for (auto& width : outputs_) width /= tiles;
  else
    inputs_ /= tiles;
}

bool Projection::adjacent(std::int64_t width) const {
  return std::all_of(outputs_.begin(), outputs_.end() - 1, [&](std::int64_t n) { return n * width % kPackElements == 0; });
}

Projection::Whole Projection::place(ScratchArena& arena, DType dtype) const {
  Whole place;
  if (!adjacent(inputs_)) place.matrix = arena.take(dtype, {outputs(), inputs_});
  if (bias_ && !adjacent(1)) place.bias = arena.take(dtype, {outputs()});
  return place;
}

TensorView Projection::float8_room(ScratchArena& arena, std::int64_t rows, bool gradient) const {
  const auto bytes = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return Float8Operands(ScratchArena(), m, n, k, kValues, kValues).bytes;
  };
  const auto most =
      gradient ? bytes(outputs(), inputs_, rows) : std::max(bytes(rows, outputs(), inputs_), bytes(rows, inputs_, outputs()));
  return arena.take(kValues, {static_cast<std::int64_t>(most)});
}

Tensors Projection::matrices(Tensors tensors) const { return tensors.subspan(first_, outputs_.size()); }

Tensors Projection::biases(Tensors tensors) const { return tensors.subspan(first_ + outputs_.size(), outputs_.size()); }

Projection::Whole Projection::prepare(LayerContext& ctx, Tensors weights, const Whole& place) const {
  const auto whole = [&](Tensors tensors, const TensorView& place_of_all, Shape shape) {
    if (place_of_all.empty()) return joined(tensors, shape);
    each_part(tensors, place_of_all,
              [&](const TensorView& tensor, const TensorView& its_place) { ctx.math.convert(ctx.stream, its_place, tensor); });
    return place_of_all;
  };
  return {whole(matrices(weights), place.matrix, {outputs(), inputs_}),
          bias_ && adds_bias_ ? whole(biases(weights), place.bias, {outputs()}) : TensorView{}, place.codes};
}

void Projection::forward(LayerContext& ctx, const Whole& weights, MatrixView y, TensorView x, Accumulate accumulate) const {
  multiply(ctx, weights.codes, y, x, Transpose::no, kValues, weights.matrix, out_in_ ? Transpose::yes : Transpose::no, kValues,
           weights.bias, accumulate);
}

void Projection::input_grad(LayerContext& ctx, const Whole& weights, TensorView dx, MatrixView dy,
                            Accumulate accumulate) const {
  multiply(ctx, weights.codes, dx, dy, Transpose::no, kGradients, weights.matrix, out_in_ ? Transpose::no : Transpose::yes,
           kValues, {}, accumulate);
}

void Projection::weight_grad(LayerContext& ctx, Tensors gradients, const Whole& place, MatrixView dy, TensorView x,
                             Accumulate accumulate) const {
  // `compute(to, accumulate)` makes the gradient of all tensors at once.
  const auto make = [&](Tensors tensors, const TensorView& place_of_all, Shape shape, auto&& compute) {
    if (is_frozen(tensors)) return;
    if (place_of_all.empty()) return compute(joined(tensors, shape), accumulate);
    compute(place_of_all, Accumulate::no);
    each_part(tensors, place_of_all, [&](const TensorView& tensor, const TensorView& its_place) {
      ctx.math.convert(ctx.stream, tensor, its_place, accumulate);
    });
  };
  if (bias_ && adds_bias_) {
    make(biases(gradients), place.bias, {outputs()},
         [&](const TensorView& to, Accumulate how) { ctx.math.bias_grad(ctx.stream, to, dy.view, how); });
  } else if (bias_ && accumulate == Accumulate::no && !is_frozen(biases(gradients))) {
    for (const TensorView& part_of_sum : biases(gradients)) ctx.math.zero(ctx.stream, part_of_sum);
  }
  make(matrices(gradients), place.matrix, {outputs(), inputs_},
       [&](const TensorView& to, Accumulate how) { gradient_product(ctx, to, dy, x, how, place.codes); });
}

void Projection::gradient_product(LayerContext& ctx, TensorView to, const MatrixView& dy, const MatrixView& x,
                                  Accumulate accumulate, const TensorView& codes) const {
  const MatrixView &rows = out_in_ ? dy : x, &columns = out_in_ ? x : dy;
  multiply(ctx, codes, to, rows, Transpose::yes, out_in_ ? kGradients : kValues, columns, Transpose::no,
           out_in_ ? kValues : kGradients, {}, accumulate);
}

void Projection::pack(LayerContext& ctx, Tensors weights, const Whole& to) const {
  const auto copy = [&](const TensorView& tensor, const TensorView& its_place) {
    ctx.math.convert(ctx.stream, its_place, tensor);
  };
  each_part(matrices(weights), to.matrix, copy);
  if (bias_) each_part(biases(weights), to.bias, copy);
}

void Projection::add_gradient(LayerContext& ctx, Tensors gradients, const Whole& from, Accumulate accumulate) const {
  const auto add = [&](const TensorView& tensor, const TensorView& its_place) {
    if (!tensor.empty()) ctx.math.convert(ctx.stream, tensor, its_place, accumulate);
  };
  each_part(matrices(gradients), from.matrix, add);
  if (bias_) each_part(biases(gradients), from.bias, add);
}

}  // namespace terrace::layers
