#include <terrace/examples/lm/embedding.h>

namespace terrace::lm {

Embedding::Embedding(const ModelConfig& config) : LmLayer("embedding", config) {
  const Init init{InitKind::normal, config.init_std()};
  params_.push_back({.name = weight_name(*names().embedding), .shape = {config.vocab, config.hidden}, .init = init});
  if (const auto* const learned = learned_positions(config.family)) {
    params_.push_back({.name = weight_name(*learned->tensor), .shape = {config.seq_len, config.hidden}, .init = init});
  }
}

TensorView Embedding::positions(std::span<const TensorView> tensors) const {
  return learned_positions(config_.family) ? tensors[1] : TensorView{};
}

void Embedding::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {.x = false});
  check("tokens", ctx.tokens, DType::i32, {ctx.shape.tokens()});
  ctx.math.embed(ctx.stream, t.y, ctx.tokens, t.weights[0], positions(t.weights), ctx.shape.seq);
}

void Embedding::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {.x = false});
  if (!has(half, Half::weight)) return;
  check("tokens", ctx.tokens, DType::i32, {ctx.shape.tokens()});
  ctx.math.embed_grad(ctx.stream, t.gradients[0], positions(t.gradients), ctx.tokens, t.dy, ctx.shape.seq, t.accumulate);
}

void Embedding::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView, TensorView y, CacheViews cache,
                            std::int64_t position) const {
  check_decode(ctx, weights, cache, position);
  check("tokens", ctx.tokens, DType::i32, {1});
  check("y", y, config_.dtype, {1, config_.hidden});
  ctx.math.embed(ctx.stream, y, ctx.tokens, weights[0], positions(weights), 1, position);
}

}  // namespace terrace::lm
