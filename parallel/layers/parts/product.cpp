#include <terrace/parallel/layers/parts/product.h>

#include <utility>

namespace terrace::layers {

Product::Spec Product::first_of(std::string prefix, const ProjectionParts& parts, std::vector<std::int64_t> outputs,
                                std::vector<std::uint32_t> ways, const Transformer& config, const Tiles& tiles) {
  return {std::move(prefix), parts, std::move(outputs), config.hidden, {Projection::Split::Of::outputs, std::move(ways)},
          config.init_std,   tiles};
}

Product::Spec Product::second_of(std::string prefix, const ProjectionParts& parts, std::int64_t inputs,
                                 const Transformer& config, const Tiles& tiles) {
  return {std::move(prefix),          parts, {config.hidden}, inputs, {Projection::Split::Of::inputs, {config.tensor().ranks}},
          config.residual_init_std(), tiles};
}

Product::Product(std::vector<ParamSpec>& params, Spec spec, const Transformer& config)
    : spec_(std::move(spec)),
      dtype_(config.dtype),
      float8_(config.products == Products::fp8),
      adds_bias_(spec_.split.of == Projection::Split::Of::outputs || config.tensor().leads()) {
  const auto& [prefix, parts, outputs, inputs, split, init_std, tiles] = spec_;
  if (!tiles.apart || !parts.bias) return;
  std::vector<ParamSpec> all;  // the matrices, then the biases
  const Projection whole(all, prefix, parts, outputs, inputs, split, init_std, config);
  for (auto p = parts.tensors.size(); p < all.size(); ++p) {
    biases_.push_back(static_cast<std::uint32_t>(params.size()));
    params.push_back(std::move(all[p]));
  }
}

void Product::declare(std::vector<ParamSpec>& params, std::uint32_t unit, const Transformer& config) {
  const auto first = params.size();
  const ProjectionParts parts{spec_.parts.tensors, spec_.parts.bias && !spec_.tiles.apart};
  whole_ = tile_ = Projection(params, spec_.prefix, parts, spec_.outputs, spec_.inputs, spec_.split, spec_.init_std, config);
  using Of = Projection::Split::Of;
  if (spec_.tiles.apart) tile_.cut(params, of_inputs() ? Of::inputs : Of::outputs, tiles(), fused());
  for (auto p = first; p < params.size(); ++p) params[p].unit = unit;
}

void Product::adapt(std::vector<ParamSpec>& params, std::uint32_t unit, const Transformer& config) {
  std::vector<LowRank::Result> results;
  for (std::size_t i = 0; const auto& tensor : spec_.parts.tensors) {
    results.push_back({spec_.prefix + tensor, tensor, whole_.widths()[i], whole_.output_splits()[i]});
    ++i;
  }
  adapt(params, results, unit, config);
}

void Product::adapt(std::vector<ParamSpec>& params, const std::vector<LowRank::Result>& results, std::uint32_t unit,
                    const Transformer& config) {
  using Of = Projection::Split::Of;
  adapters_ = LowRank(params, results, whole_, unit, config);
  if (!in_columns()) adapters_.cut(of_inputs() ? Of::inputs : Of::outputs, tiles(), fused());
}

std::vector<PhaseParam> Product::params(std::uint32_t tile) const {
  std::vector<PhaseParam> all;
  for (const auto bias : biases_) all.push_back({bias});
  tile_.name_params(all, tile);
  if (adapts(tile)) adapters_.name_params(all);
  return all;
}

std::vector<PhaseParam> Product::adapters(std::uint32_t tile) const {
  std::vector<PhaseParam> all;
  if (adapts(tile)) adapters_.name_params(all);
  return all;
}

Product::Ready Product::place(std::uint32_t tile, std::int64_t rows, ScratchArena& arena, Calls calls, bool kept) const {
  const bool gradient = calls == Calls::weight_grad;
  const auto dtype = gradient ? accumulator_of(dtype_) : dtype_;
  Ready ready{.tile = tile};
  if (in_columns()) ready.columns = arena.take(dtype_, {rows, tile_.outputs()});
  ready.weights = tile_.place(arena, dtype);
  if (float8_) tile_.place_float8(arena, ready.weights, rows, calls, kept);
  if (biases_.size() * fused() > 1) ready.bias = arena.take(dtype, {tile_.outputs()});
  if (adapts(tile) && gradient) ready.adapters = adapters_.place_gradient(arena, rows);
  if (adapts(tile) && !gradient) ready.adapters.forward = adapters_.place(arena, rows);
  return ready;
}

std::uint64_t Product::scratch_bytes(std::uint32_t tile, std::int64_t rows, Calls calls) const {
  return measured([&](ScratchArena& arena) { return place(tile, rows, arena, calls); });
}

std::uint64_t Product::gradient_bytes(std::uint32_t tile, std::int64_t rows, bool kept) const {
  return measured([&](ScratchArena& arena) { return place(tile, rows, arena, Calls::weight_grad, kept); });
}

// The codes in scratch count with the scratch.
double Product::rounding_bytes(bool weights, double rows_of_x, double rows_of_dy, bool keeps) const {
  if (!float8_) return 0;
  const auto in = static_cast<double>(tile_.inputs()), out = static_cast<double>(tile_.outputs());
  return float8_rounding_bytes(0) * ((weights ? in * out : 0) + rows_of_x * in) +
         float8_rounding_bytes(keeps ? 1 : 0) * rows_of_dy * out;
}

std::vector<TensorSpec> Product::kept_codes(const std::string& of, std::int64_t rows) const {
  return {{"codes of " + of, kFloat8Gradients, float8_shape(tiles() * tile_.outputs(), rows)},
          {"scales of " + of, DType::fp32, {tiles()}}};
}

Float8Matrix Product::of_tile(Tensors kept, std::uint32_t tile) const {
  if (kept.empty()) return {};
  return {.turned = row_slice(kept[0], tile * tile_.outputs(), tile_.outputs()), .scale = part(kept[1], tile, {1})};
}

Product::Ready Product::prepare(LayerContext& ctx, Tensors weights, std::uint32_t tile, std::int64_t rows, ScratchArena& arena,
                                Calls calls) const {
  auto ready = place(tile, rows, arena, calls);
  ready.params = weights;
  ready.weights = tile_.prepare(ctx, weights, ready.weights);
  return ready;
}

template <class Move>
void Product::each_run(std::uint32_t tile, Move&& move) const {
  std::int64_t in_whole = 0, in_tile = 0;
  for (std::size_t i = 0; i < tile_.widths().size(); ++i) {
    const auto width = tile_.widths()[i] / fused();
    for (std::uint32_t p = 0; p < fused(); ++p, in_tile += width, in_whole += whole_.widths()[i] / fused())
      move(in_whole + tile * width, in_tile, width);
  }
}

template <class Use>
void Product::each_bias(Tensors tensors, std::uint32_t tile, Use&& use) const {
  std::size_t number = 0;
  if (biases_.empty()) return;
  each_run(of_inputs() ? 0 : tile, [&](std::int64_t in_whole, std::int64_t in_tile, std::int64_t width) {
    const bool several = fused() > 1;
    const auto first = several ? in_whole : of_inputs() ? 0 : tile * width;
    use(part(tensors[biases_[several ? 0 : number++]], first, {width}), in_tile);
  });
}

TensorView Product::bias_of(LayerContext& ctx, const Ready& ready) const {
  TensorView whole = ready.bias;
  each_bias(ready.params, ready.tile, [&](const TensorView& bias, std::int64_t in_tile) {
    if (ready.bias.empty())
      whole = bias;
    else
      ctx.math.convert(ctx.stream, part(ready.bias, in_tile, bias.shape), bias);
  });
  return whole;
}

void Product::forward(LayerContext& ctx, const Ready& ready, TensorView y, TensorView x, Accumulate accumulate) const {
  auto weights = ready.weights;
  if (!biases_.empty() && adds_bias_ && (!of_inputs() || ready.tile == 0)) weights.bias = bias_of(ctx, ready);
  if (in_columns()) {
    const auto columns = row_slice(ready.columns, 0, x.shape[0]);
    tile_.forward(ctx, weights, columns, x);
    each_run(ready.tile, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
      ctx.math.columns(ctx.stream, y, to, columns, from, count, accumulate);
    });
  } else {
    tile_.forward(ctx, weights, y, x, accumulate);
  }
  if (adapts(ready.tile)) adapters_.add(ctx, ready.params, ready.adapters.forward, LowRank::Of::x, y, x, ready.tile);
}

TensorView Product::own_columns(LayerContext& ctx, const Ready& ready, const TensorView& dy) const {
  if (!in_columns()) return dy;
  const auto columns = row_slice(ready.columns, 0, dy.shape[0]);
  each_run(ready.tile, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    ctx.math.columns(ctx.stream, columns, to, dy, from, count);
  });
  return columns;
}

void Product::input_grad(LayerContext& ctx, const Ready& ready, TensorView dx, TensorView dy, Tensors kept) const {
  const auto how = of_inputs() || ready.tile == 0 ? Accumulate::no : Accumulate::yes;
  tile_.input_grad(ctx, ready.weights, dx, own_columns(ctx, ready, dy), how, of_tile(kept, ready.tile));
  if (adapts(ready.tile)) adapters_.add(ctx, ready.params, ready.adapters.forward, LowRank::Of::dy, dx, dy, ready.tile);
}

void Product::weight_grad(LayerContext& ctx, Tensors weights, Tensors gradients, std::uint32_t tile, TensorView dy,
                          TensorView x, Accumulate accumulate, ScratchArena arena, Tensors kept) const {
  const auto room = place(tile, x.shape[0], arena, Calls::weight_grad, !kept.empty());
  const auto of_columns = own_columns(ctx, room, dy);
  tile_.weight_grad(ctx, gradients, room.weights, of_columns, x, accumulate, of_tile(kept, tile));
  if (!of_inputs()) tile_bias_grad(ctx, gradients, tile, room.bias, of_columns, accumulate);
  if (adapts(tile)) adapters_.weight_grad(ctx, weights, gradients, room.adapters, dy, x, accumulate, tile);
}

void Product::bias_grad(LayerContext& ctx, Tensors gradients, TensorView dy, Accumulate accumulate) const {
  tile_bias_grad(ctx, gradients, 0, {}, dy, accumulate);
}

// The bias belongs to the rank that adds it: only that rank computes its gradient.
void Product::tile_bias_grad(LayerContext& ctx, Tensors gradients, std::uint32_t tile, TensorView place, TensorView dy,
                             Accumulate accumulate) const {
  if (adds_bias_ && !place.empty()) ctx.math.bias_grad(ctx.stream, place, dy, Accumulate::no);
  each_bias(gradients, tile, [&](const TensorView& gradient, std::int64_t in_tile) {
    if (gradient.empty()) return;  // frozen
    if (!adds_bias_) {
      if (accumulate == Accumulate::no) ctx.math.zero(ctx.stream, gradient);
    } else if (place.empty()) {
      ctx.math.bias_grad(ctx.stream, gradient, dy, accumulate);
    } else {
      ctx.math.convert(ctx.stream, gradient, part(place, in_tile, gradient.shape), accumulate);
    }
  });
}

}  // namespace terrace::layers
