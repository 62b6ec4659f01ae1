#include <terrace/parallel/layers/parts/query_key_norm.h>

#include <algorithm>
#include <utility>

#include <terrace/parallel/layers/parts/grid_cut.h>
#include <terrace/parallel/layers/parts/norm.h>

namespace terrace::layers {

QueryKeyNorm::QueryKeyNorm(std::vector<ParamSpec>& params, const Transformer& config, std::int64_t block)
    : eps_(config.norm_eps), offset_(config.norm_offset), dtype_(config.dtype) {
  if (config.query_key_norms == QueryKeyNorms::none) return;
  const bool whole = config.query_key_norms == QueryKeyNorms::whole;
  if (whole) ranks_ = config.tensor().ways();
  const auto add = [&](const std::string& name, std::int64_t first, std::int64_t heads, std::uint32_t ways) {
    const auto width = heads * config.head_dim(), each = whole ? width : config.head_dim();
    model::TensorSplit split;
    if (across()) split = {.dim = 0, .parts = {width * ways}, .ways = ways};
    if (across() && config.tensor().is_grid()) split = GridCut(config.tensor(), true).of_bias({width * ways});
    parts_.push_back({params.size(), first, width, each});
    params.push_back({.name = weight_name(config.names.in_block(block, name)),
                      .shape = {each},
                      .init = gain_init(config),
                      .decay = false,
                      .split = std::move(split)});
  };
  add(config.names.q_norm, 0, config.heads_here(), config.tensor().ways());
  add(config.names.k_norm, config.attended_here(), config.kv_heads_here(), config.kv_ways());
}

void QueryKeyNorm::name_params(std::vector<PhaseParam>& of_phase) const {
  for (const auto& part : parts_) of_phase.push_back({static_cast<std::uint32_t>(part.param)});
}

std::vector<TensorSpec> QueryKeyNorm::saved(std::int64_t rows) const {
  std::vector<TensorSpec> all;
  for (const auto& part : parts_) all.push_back({"input of the norm of q or k", dtype_, {rows, part.width}});
  for (const auto& part : parts_)
    all.push_back({"statistics of q or k", accumulator_of(dtype_), {rows * (part.width / part.each)}});
  return all;
}

std::vector<TensorSpec> QueryKeyNorm::carried(std::int64_t rows) const {
  std::vector<TensorSpec> all;
  for (const auto& part : parts_) all.push_back({"gradient of the norm of q or k", dtype_, {rows, part.width}});
  return all;
}

TensorSpec QueryKeyNorm::scratch(std::int64_t rows) const {
  std::int64_t width = 0;
  for (const auto& part : parts_) width = std::max(width, part.width);
  return {"norm of q or k", dtype_, {rows, width}};
}

TensorSpec QueryKeyNorm::sums(std::int64_t rows) const {
  return {"sums over rows of q and k", accumulator_of(dtype_), {std::ssize(parts_), rows}};
}

void QueryKeyNorm::take(LayerContext& ctx, TensorView qkv, Tensors to, Tensors saved, Tensors weights, TensorView sums) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& p = parts_[i];
    ctx.math.columns(ctx.stream, to[i], 0, qkv, p.first, p.width);
    if (!across()) continue;
    const auto of_rows = sums_of(sums, i, saved[i].shape[0]);
    if (weights.empty())
      ctx.math.row_products(ctx.stream, of_rows, to[i], saved[i], {}, share(p));
    else
      ctx.math.row_products(ctx.stream, of_rows, to[i], saved[i], weights[p.param], share(p), offset_);
  }
}

void QueryKeyNorm::forward(LayerContext& ctx, Tensors weights, TensorView qkv, Tensors saved, ScratchArena arena,
                           TensorView sums) const {
  if (!across()) take(ctx, qkv, saved, saved, {}, {});
  const auto room = arena.take(scratch(qkv.shape[0]));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& p = parts_[i];
    const auto result = part(room, 0, saved[i].shape);
    ctx.math.norm(ctx.stream, norms(p, result), {}, statistics(saved, i), norms(p, saved[i]), weights[p.param], {}, eps_,
                  offset_, sums_of(sums, i, saved[i].shape[0]));
    ctx.math.columns(ctx.stream, qkv, p.first, result, 0, p.width);
  }
}

void QueryKeyNorm::input_grad(LayerContext& ctx, Tensors weights, TensorView dqkv, Tensors saved, Tensors carried,
                              ScratchArena arena, TensorView sums) const {
  if (!across()) take(ctx, dqkv, carried, saved, weights, {});
  const auto room = arena.take(scratch(dqkv.shape[0]));
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& p = parts_[i];
    const auto result = part(room, 0, saved[i].shape);
    ctx.math.norm_input_grad(ctx.stream, norms(p, result), norms(p, carried[i]), norms(p, saved[i]), weights[p.param], {},
                             statistics(saved, i), Accumulate::no, offset_, sums_of(sums, i, saved[i].shape[0]));
    ctx.math.columns(ctx.stream, dqkv, p.first, result, 0, p.width);
  }
}

void QueryKeyNorm::weight_grad(LayerContext& ctx, Tensors gradients, Tensors saved, Tensors carried,
                               Accumulate accumulate) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& p = parts_[i];
    if (gradients[p.param].empty()) continue;  // frozen
    ctx.math.norm_weight_grad(ctx.stream, gradients[p.param], {}, norms(p, carried[i]), norms(p, saved[i]), {},
                              statistics(saved, i), accumulate);
  }
}

}  // namespace terrace::layers
