#include <algorithm>
#include <numeric>
#include <stdexcept>

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

// Where the operand of a product is rounded to 8 bits.
struct Operand {
  Operand(ScratchArena& arena, DType of, std::int64_t rows, std::int64_t columns)
      : codes(arena.take(of, float8_shape(rows, columns))), scale(arena.take(DType::fp32, {1})) {}
  TensorView codes, scale;
};

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

void Projection::place_float8(ScratchArena& arena, Whole& place, std::int64_t rows, Calls calls, bool kept) const {
  ScratchArena room;  // measures
  if (calls == Calls::weight_grad) {
    static_cast<void>(Operand(room, kFloat8Values, inputs_, rows));
    if (!kept) static_cast<void>(Operand(room, kFloat8Gradients, outputs(), rows));
  } else {
    const bool forward = calls != Calls::input_grad, input_grad = calls != Calls::forward;
    const auto to = out_in_ ? outputs() : inputs_, from = out_in_ ? inputs_ : outputs();  // rows and columns as stored
    if (out_in_ ? forward : input_grad) place.codes.codes = arena.take(kFloat8Values, float8_shape(to, from));
    if (out_in_ ? input_grad : forward) place.codes.turned = arena.take(kFloat8Values, float8_shape(from, to));
    place.codes.scale = arena.take(DType::fp32, {1});
    static_cast<void>(
        Operand(room, kFloat8Values, rows, std::max(forward ? inputs_ : 0, input_grad ? outputs() : std::int64_t{0})));
  }
  place.room = arena.take(kFloat8Values, {static_cast<std::int64_t>(room.peak_bytes())});
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
  auto ready = place;
  ready.matrix = whole(matrices(weights), place.matrix, {outputs(), inputs_});
  ready.bias = bias_ && adds_bias_ ? whole(biases(weights), place.bias, {outputs()}) : TensorView{};
  const auto& [codes, turned, scale] = place.codes;
  if (!scale.empty()) ctx.math.quantise(ctx.stream, codes, turned, scale, ready.matrix);
  return ready;
}

void Projection::forward(LayerContext& ctx, const Whole& weights, MatrixView y, TensorView x, Accumulate accumulate) const {
  if (weights.room.empty())
    return ctx.math.matmul(ctx.stream, y, x, Transpose::no, weights.matrix, out_in_ ? Transpose::yes : Transpose::no,
                           weights.bias, accumulate);
  ScratchArena arena(weights.room);
  const Operand of_x(arena, kFloat8Values, rows_of(x), inputs_);
  ctx.math.quantise(ctx.stream, of_x.codes, {}, of_x.scale, x);
  const auto& [codes, turned, scale] = weights.codes;
  ctx.math.matmul_float8(ctx.stream, y, of_x.codes, out_in_ ? codes : turned, of_x.scale, scale, weights.bias, accumulate);
}

void Projection::input_grad(LayerContext& ctx, const Whole& weights, TensorView dx, MatrixView dy, Accumulate accumulate,
                            const Float8Matrix& kept) const {
  if (weights.room.empty())
    return ctx.math.matmul(ctx.stream, dx, dy, Transpose::no, weights.matrix, out_in_ ? Transpose::no : Transpose::yes, {},
                           accumulate);
  ScratchArena arena(weights.room);
  const Operand place(arena, kFloat8Gradients, rows_of(dy), outputs());
  const auto of_dy = kept.scale.empty() ? place.scale : kept.scale;
  ctx.math.quantise(ctx.stream, place.codes, kept.turned, of_dy, dy);
  const auto& [codes, turned, scale] = weights.codes;
  ctx.math.matmul_float8(ctx.stream, dx, place.codes, out_in_ ? turned : codes, of_dy, scale, {}, accumulate);
}

void Projection::weight_grad(LayerContext& ctx, Tensors gradients, const Whole& place, MatrixView dy, TensorView x,
                             Accumulate accumulate, const Float8Matrix& kept) const {
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
       [&](const TensorView& to, Accumulate how) { gradient_product(ctx, to, dy, x, how, place.room, kept); });
}

void Projection::gradient_product(LayerContext& ctx, TensorView to, const MatrixView& dy, const MatrixView& x,
                                  Accumulate accumulate, const TensorView& room, const Float8Matrix& kept) const {
  if (room.empty()) {
    const MatrixView &rows = out_in_ ? dy : x, &columns = out_in_ ? x : dy;
    return ctx.math.matmul(ctx.stream, to, rows, Transpose::yes, columns, Transpose::no, {}, accumulate);
  }
  ScratchArena arena(room);
  const Operand of_x(arena, kFloat8Values, inputs_, rows_of(x));
  ctx.math.quantise(ctx.stream, {}, of_x.codes, of_x.scale, x);
  auto of_dy = kept;
  if (kept.turned.empty()) {
    const Operand place(arena, kFloat8Gradients, outputs(), rows_of(dy));
    of_dy = {.turned = place.codes, .scale = place.scale};
    ctx.math.quantise(ctx.stream, {}, of_dy.turned, of_dy.scale, dy);
  }
  const auto multiply = [&](const TensorView& a, const TensorView& a_scale, const TensorView& b, const TensorView& b_scale) {
    ctx.math.matmul_float8(ctx.stream, to, a, b, a_scale, b_scale, {}, accumulate);
  };
  out_in_ ? multiply(of_dy.turned, of_dy.scale, of_x.codes, of_x.scale)
          : multiply(of_x.codes, of_x.scale, of_dy.turned, of_dy.scale);
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
