#include <terrace/parallel/layers/embedding.h>

namespace terrace::layers {

Embedding::Embedding(const Transformer& config) : TransformerLayer("embedding", config) {
  const Init init{InitKind::normal, config.init_std};
  params_.push_back(table_of(config, config.names.embedding));
  if (config.positions == Positions::learned) {
    params_.push_back({.name = weight_name(config.names.positions), .shape = {config.seq_len, config.hidden}, .init = init});
  }
}

TensorView Embedding::positions(std::span<const TensorView> tensors) const {
  return config_.positions == Positions::learned ? tensors[1] : TensorView{};
}

TensorView Embedding::rows(std::span<const TensorView> tensors) const {
  return row_slice(tensors[0], 0, config_.vocab_here().count);
}

TensorView Embedding::tokens_here(LayerContext& ctx) const {
  if (config_.tensor.ranks == 1) return ctx.tokens;
  const TensorView tokens = ScratchArena(ctx.scratch).take(DType::i32, ctx.tokens.shape);
  ctx.math.ids_in_part(ctx.stream, tokens, ctx.tokens, config_.vocab_here().begin, config_.vocab_here().count);
  return tokens;
}

std::uint64_t Embedding::scratch_bytes(BatchShape shape) const {
  ScratchArena arena;
  if (config_.tensor.ranks > 1) arena.take(DType::i32, {shape.tokens()});
  return arena.peak_bytes();
}

void Embedding::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {.x = false});
  check("tokens", ctx.tokens, DType::i32, {ctx.shape.tokens()});
  const TensorView added = config_.tensor.leads() ? positions(t.weights) : TensorView{};
  ctx.math.embed(ctx.stream, t.y, tokens_here(ctx), rows(t.weights), added, ctx.shape.seq);
}

void Embedding::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {.x = false});
  if (!has(half, Half::weight)) return;
  check("tokens", ctx.tokens, DType::i32, {ctx.shape.tokens()});
  const TensorView added = config_.tensor.leads() ? positions(t.gradients) : TensorView{};
  ctx.math.embed_grad(ctx.stream, rows(t.gradients), added, tokens_here(ctx), t.dy, ctx.shape.seq, t.accumulate);
  if (t.accumulate == Accumulate::yes) return;
  zero_rest(ctx, t.gradients[0]);
  if (!config_.tensor.leads() && config_.positions == Positions::learned) ctx.math.zero(ctx.stream, t.gradients[1]);
}

void Embedding::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView, TensorView y, CacheViews cache,
                            std::int64_t position) const {
  check_decode(ctx, weights, cache, position);
  check("tokens", ctx.tokens, DType::i32, {1});
  check("y", y, config_.dtype, {1, config_.hidden});
  ctx.math.embed(ctx.stream, y, ctx.tokens, weights[0], positions(weights), 1, position);
}

}  // namespace terrace::layers
