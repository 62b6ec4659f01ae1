#include <terrace/parallel/layers/parts/low_rank.h>

#include <algorithm>
#include <cmath>

namespace terrace::layers {
// A begins as torch.nn.Linear's weights do: uniform up to 1/√inputs (PEFT's kaiming_uniform_ with a = √5).
LowRank::LowRank(std::vector<ParamSpec>& params, const std::vector<Result>& results, const Projection& product,
                 std::uint32_t unit, const Transformer& config)
    : rank_(config.adapters.rank), inputs_(product.inputs()), outputs_(product.outputs()), dtype_(config.dtype) {
  if (rank_ == 0) return;
  const auto& of_inputs = product.input_split();
  if (!of_inputs.parts.empty()) inputs_ = model::part_shape({rank_, of_inputs.parts[0]}, of_inputs)[1];
  const double bound = 1 / std::sqrt(static_cast<double>(model::whole_shape({rank_, inputs_}, of_inputs)[1]));
  std::int64_t first = 0;
  for (const auto& [name, target, width, of_outputs] : results) {
    if (std::ranges::find(config.adapters.tensors, target) != config.adapters.tensors.end()) {
      parts_.push_back({params.size(), params.size() + 1, first, width});
      params.push_back({.name = weight_name(name + std::string(kAdapterA)),
                        .shape = {rank_, inputs_},
                        .init = {InitKind::uniform, bound},
                        .split = of_inputs,
                        .unit = unit});
      params.push_back({.name = weight_name(name + std::string(kAdapterB)),
                        .shape = {width, rank_},
                        .init = {},
                        .split = of_outputs,
                        .unit = unit});
    }
    first += width;
  }
  scale_ = config.adapters.alpha / static_cast<double>(rank_);
}

void LowRank::name_params(std::vector<PhaseParam>& of_phase) const {
  for (const auto& part : parts_)
    for (const auto p : {part.a, part.b}) of_phase.push_back({static_cast<std::uint32_t>(p)});
}

void LowRank::cut(Projection::Split::Of of, std::uint32_t tiles, std::uint32_t blocks) {
  if (parts_.empty()) return;
  if (of == Projection::Split::Of::inputs) {
    inputs_ /= tiles;
    cuts_inputs_ = tiles > 1;
    return;
  }
  tiles_ = tiles;
  blocks_ = tiles > 1 ? blocks : 1;
  outputs_ /= tiles;
  for (auto& part_of : parts_) {
    part_of.first_output /= tiles;
    part_of.outputs /= tiles;
  }
}

LowRank::Room LowRank::place(ScratchArena& arena, std::int64_t rows) const {
  if (parts_.empty()) return {};
  Room room{.a = {}, .b = {}, .u = arena.take(dtype_, {rows, columns()})};
  if (parts_.size() > 1 || cuts_inputs_) room.a = arena.take(dtype_, {columns(), inputs_});
  if (!is_whole()) room.b = arena.take(dtype_, {outputs_, columns()});
  return room;
}

LowRank::GradientRoom LowRank::place_gradient(ScratchArena& arena, std::int64_t rows) const {
  if (parts_.empty()) return {};
  const auto sums = accumulator_of(dtype_);
  const auto widest = std::ranges::max(parts_, {}, &Part::outputs).outputs;
  return {.forward = place(arena, rows),
          .du = arena.take(dtype_, {rows, columns()}),
          .da = arena.take(sums, {columns(), inputs_}),
          .db = arena.take(sums, {outputs_, columns()}),
          .one = arena.take(sums, {cuts_inputs_ ? std::max(widest, inputs_) : widest, rank_})};
}

TensorView LowRank::all_a(LayerContext& ctx, Tensors weights, const Room& room, std::uint32_t tile) const {
  if (parts_.size() == 1 && !cuts_inputs_) return weights[parts_[0].a];
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto to = row_slice(room.a, static_cast<std::int64_t>(i) * rank_, rank_);
    if (cuts_inputs_)
      ctx.math.columns(ctx.stream, to, 0, weights[parts_[i].a], tile * inputs_, inputs_);
    else
      ctx.math.convert(ctx.stream, to, weights[parts_[i].a]);
  }
  return room.a;
}

TensorView LowRank::all_b(LayerContext& ctx, Tensors weights, const Room& room, std::uint32_t tile) const {
  if (is_whole()) return b_of(weights, parts_[0], tile, 0).rows;
  ctx.math.zero(ctx.stream, room.b);
  for (std::size_t i = 0; i < parts_.size(); ++i)
    for (std::uint32_t block = 0; block < blocks_; ++block) {
      const auto [rows, output] = b_of(weights, parts_[i], tile, block);
      ctx.math.columns(ctx.stream, row_slice(room.b, output, rows.shape[0]), static_cast<std::int64_t>(i) * rank_, rows, 0,
                       rank_);
    }
  return room.b;
}

TensorView LowRank::narrow(LayerContext& ctx, Tensors weights, const Room& room, Of of, TensorView to, TensorView from,
                           std::uint32_t tile) const {
  const auto matrix = of == Of::x ? all_a(ctx, weights, room, tile) : all_b(ctx, weights, room, tile);
  to = row_slice(to, 0, from.shape[0]);
  ctx.math.matmul(ctx.stream, to, from, Transpose::no, matrix, of == Of::x ? Transpose::yes : Transpose::no);
  ctx.math.multiply(ctx.stream, to, to, scale_);
  return to;
}

void LowRank::widen(LayerContext& ctx, Tensors weights, const Room& room, Of of, TensorView to, TensorView from,
                    std::uint32_t tile) const {
  const auto matrix = of == Of::x ? all_b(ctx, weights, room, tile) : all_a(ctx, weights, room, tile);
  ctx.math.matmul(ctx.stream, to, from, Transpose::no, matrix, of == Of::x ? Transpose::yes : Transpose::no, {},
                  Accumulate::yes);
}

void LowRank::add(LayerContext& ctx, Tensors weights, const Room& room, Of of, TensorView to, TensorView from,
                  std::uint32_t tile) const {
  if (!parts_.empty()) widen(ctx, weights, room, of, to, narrow(ctx, weights, room, of, room.u, from, tile), tile);
}

void LowRank::weight_grad(LayerContext& ctx, Tensors weights, Tensors gradients, const GradientRoom& room, TensorView dy,
                          TensorView x, Accumulate accumulate, std::uint32_t tile) const {
  if (parts_.empty()) return;
  const auto u = narrow(ctx, weights, room.forward, Of::x, room.forward.u, x, tile),
             du = narrow(ctx, weights, room.forward, Of::dy, room.du, dy, tile);
  this->gradients(ctx, gradients, room, u, du, dy, x, accumulate, tile);
}

void LowRank::gradients(LayerContext& ctx, Tensors gradients, const GradientRoom& room, TensorView u, TensorView du,
                        TensorView dy, TensorView x, Accumulate accumulate, std::uint32_t tile) const {
  // What all tiles have in common is a sum over them.
  const auto of_a = tiles_ > 1 && tile > 0 ? Accumulate::yes : accumulate,
             of_b = cuts_inputs_ && tile > 0 ? Accumulate::yes : accumulate;
  ctx.math.matmul(ctx.stream, room.da, du, Transpose::yes, x, Transpose::no);
  ctx.math.matmul(ctx.stream, room.db, dy, Transpose::yes, u, Transpose::no);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& part_of = parts_[i];
    const auto first = static_cast<std::int64_t>(i) * rank_;
    const auto of_rank = row_slice(room.da, first, rank_);
    if (const auto& da = gradients[part_of.a]; !da.empty() && cuts_inputs_) {
      const TensorView columns_of_a{room.one.data, da.dtype, {rank_, inputs_}};
      ctx.math.convert(ctx.stream, columns_of_a, of_rank);
      ctx.math.columns(ctx.stream, da, tile * inputs_, columns_of_a, 0, inputs_, of_a);
    } else if (!da.empty()) {
      ctx.math.convert(ctx.stream, da, of_rank, of_a);
    }
    for (std::uint32_t block = 0; block < blocks_ && !gradients[part_of.b].empty(); ++block) {
      const auto [db, output] = b_of(gradients, part_of, tile, block);
      const auto one = part(room.one, 0, db.shape);
      ctx.math.columns(ctx.stream, one, 0, row_slice(room.db, output, db.shape[0]), first, rank_);
      ctx.math.convert(ctx.stream, db, one, of_b);
    }
  }
}

}  // namespace terrace::layers
