#include <terrace/parallel/layers/parts/tiled_projection.h>

#include <algorithm>
#include <utility>

namespace terrace::layers {

TiledProjection::TiledProjection(std::vector<ParamSpec>& params, const Projection& whole, std::uint32_t tiles,
                                 std::uint32_t unit, Bias bias, DType dtype)
    : tile_(whole), widths_(whole.widths()), bias_(std::move(bias)), dtype_(dtype) {
  tile_.cut(params, Projection::Split::Of::outputs, tiles, unit);
}

TiledProjection::Scratch::Scratch(const TiledProjection& of, ScratchArena& arena, std::int64_t rows, bool of_gradient)
    : columns(arena.take(of.dtype_, {rows, of.tile_.outputs()})),
      weights(of_gradient ? of.tile_.place_gradient(arena) : of.tile_.place_weights(arena)) {
  if (of.bias_.params.size() > 1) bias = arena.take(of_gradient ? accumulator_of(of.dtype_) : of.dtype_, {of.tile_.outputs()});
}

void TiledProjection::name_tile(std::vector<PhaseParam>& of_phase, std::uint32_t tile) const {
  for (const auto param : bias_.params) of_phase.push_back({param});
  tile_.name_tile(of_phase, tile);
}

std::uint64_t TiledProjection::scratch_bytes(std::int64_t rows) const {
  std::uint64_t most = 0;
  for (const bool of_gradient : {false, true}) {
    ScratchArena arena;
    Scratch(*this, arena, rows, of_gradient);
    most = std::max(most, arena.peak_bytes());
  }
  return most;
}

template <class Move>
void TiledProjection::each_run(std::uint32_t tile, Move&& move) const {
  std::int64_t in_whole = 0, in_tile = 0;
  for (std::size_t i = 0; i < widths_.size(); ++i) {
    const auto width = tile_.widths()[i];
    move(in_whole + tile * width, in_tile, width);
    in_whole += widths_[i];
    in_tile += width;
  }
}

void TiledProjection::take(LayerContext& ctx, std::uint32_t tile, const TensorView& columns, const TensorView& whole) const {
  each_run(tile, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    ctx.math.columns(ctx.stream, columns, to, whole, from, count);
  });
}

template <class Use>
void TiledProjection::each_bias(std::span<const TensorView> tensors, std::uint32_t tile, Use&& use) const {
  std::size_t number = 0;
  if (bias_.params.empty()) return;
  each_run(tile, [&](std::int64_t, std::int64_t in_tile, std::int64_t width) {
    use(part(tensors[bias_.params[number++]], tile * width, {width}), in_tile);
  });
}

TensorView TiledProjection::bias_of(LayerContext& ctx, std::span<const TensorView> weights, std::uint32_t tile,
                                    const TensorView& place) const {
  TensorView whole = place;
  each_bias(weights, tile, [&](const TensorView& bias, std::int64_t in_tile) {
    if (place.empty())
      whole = bias;
    else
      ctx.math.convert(ctx.stream, part(place, in_tile, bias.shape), bias);
  });
  return whole;
}

void TiledProjection::bias_grad(LayerContext& ctx, std::span<const TensorView> gradients, std::uint32_t tile,
                                const Scratch& scratch, Accumulate accumulate) const {
  if (bias_.added && !scratch.bias.empty()) ctx.math.bias_grad(ctx.stream, scratch.bias, scratch.columns, Accumulate::no);
  each_bias(gradients, tile, [&](const TensorView& gradient, std::int64_t in_tile) {
    if (gradient.empty()) return;  // frozen
    if (!bias_.added) {
      if (accumulate == Accumulate::no) ctx.math.zero(ctx.stream, gradient);
    } else if (scratch.bias.empty()) {
      ctx.math.bias_grad(ctx.stream, gradient, scratch.columns, accumulate);
    } else {
      ctx.math.convert(ctx.stream, gradient, part(scratch.bias, in_tile, gradient.shape), accumulate);
    }
  });
}

void TiledProjection::forward(LayerContext& ctx, std::span<const TensorView> weights, std::uint32_t tile, TensorView y,
                              TensorView x, Accumulate accumulate, ScratchArena arena) const {
  const Scratch scratch(*this, arena, x.shape[0], false);
  auto whole = tile_.prepare(ctx, weights, scratch.weights);
  if (bias_.added) whole.bias = bias_of(ctx, weights, tile, scratch.bias);
  tile_.forward(ctx, whole, scratch.columns, x);
  each_run(tile, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
    ctx.math.columns(ctx.stream, y, to, scratch.columns, from, count, accumulate);
  });
}

void TiledProjection::input_grad(LayerContext& ctx, std::span<const TensorView> weights, std::uint32_t tile, TensorView dx,
                                 TensorView dy, ScratchArena arena) const {
  const Scratch scratch(*this, arena, dx.shape[0], false);
  take(ctx, tile, scratch.columns, dy);
  tile_.input_grad(ctx, tile_.prepare(ctx, weights, scratch.weights), dx, scratch.columns,
                   tile == 0 ? Accumulate::no : Accumulate::yes);
}

void TiledProjection::weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, std::uint32_t tile, TensorView dy,
                                  TensorView x, Accumulate accumulate, ScratchArena arena) const {
  const Scratch scratch(*this, arena, x.shape[0], true);
  take(ctx, tile, scratch.columns, dy);
  tile_.weight_grad(ctx, gradients, scratch.weights, scratch.columns, x, accumulate);
  bias_grad(ctx, gradients, tile, scratch, accumulate);
}

}  // namespace terrace::layers
