#include <terrace/parallel/layers/ends/embedding.h>

namespace terrace::layers {

Embedding::Embedding(const Transformer& config) : TransformerLayer("embedding", config) {
  const Init init{InitKind::normal, config.init_std};
  params_.push_back(table_of(config, config.names.embedding));
  if (learned_positions()) {
    params_.push_back(
        {.name = weight_name(config.names.positions), .shape = {config.seq_len, config.hidden}, .init = init, .unit = 1});
  }
}

TensorView Embedding::positions(std::span<const TensorView> tensors) const {
  return learned_positions() ? tensors[1] : TensorView{};
}

TensorView Embedding::rows(const LayerContext& ctx, std::span<const TensorView> tensors, std::uint32_t number) const {
  return row_slice(tile(ctx, tensors[0], number), 0, has_token(number).count);
}

TensorView Embedding::tokens_in(LayerContext& ctx, ScratchArena& arena, std::uint32_t number) const {
  if (is_whole()) return ctx.tokens;
  const auto [begin, count] = has_token(number);
  const TensorView tokens = arena.take(DType::i32, ctx.tokens.shape);
  ctx.math.ids_in_part(ctx.stream, tokens, ctx.tokens, begin, count);
  return tokens;
}

TensorView Embedding::scaled(LayerContext& ctx, ScratchArena& arena, TensorView dy) const {
  if (!is_scaled()) return dy;
  const TensorView result = arena.take(dy.dtype, dy.shape);
  ctx.math.multiply(ctx.stream, result, dy, config_.embedding_factor);
  return result;
}

std::uint64_t Embedding::scratch_of(BatchShape shape, bool rows) const {
  ScratchArena arena;
  if (!is_whole()) arena.take(DType::i32, {shape.tokens()});
  if (rows) arena.take(config_.dtype, {shape.tokens(), config_.hidden});
  return arena.peak_bytes();
}

std::vector<Phase> Embedding::phases(LayerCall call, BatchShape shape) const {
  if (tiles() == 1 || call == LayerCall::survey) return {};
  std::vector<Phase> phases;
  for (std::uint32_t t = 0; t < tiles(); ++t) {
    std::vector<PhaseParam> used{{0, t}};
    if (is_last(t) && learned_positions()) used.push_back(positions_param());
    if (call == LayerCall::backward)
      phases.push_back({.half = Half::weight, .gradients = used, .dy = true, .scratch_bytes = scratch_of(shape, is_scaled())});
    else
      phases.push_back(
          {.weights = used, .y = t == 0 ? Access::overwrite : Access::update, .scratch_bytes = scratch_of(shape, t != 0)});
  }
  if (call == LayerCall::backward) phases.push_back({.half = Half::input, .scratch_bytes = 0});  // tokens have no gradient
  return phases;
}

// Calls f for each run of positions within a document, with its rows in the micro-batch and its positions in the document.
template <class F>
void Embedding::each_run(const LayerContext& ctx, F&& f) const {
  std::int64_t row = 0;
  for (std::int64_t b = 0; b < ctx.shape.batch; ++b)
    for (const auto& run : config_.context.runs(ctx.shape.seq))
      for (const auto& piece : ctx.documents.pieces(b, run)) {
        f(Block{row, piece.count}, Block{piece.begin - piece.document, piece.count});
        row += piece.count;
      }
}

void Embedding::embed(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, std::int64_t seq,
                      std::int64_t first_position) const {
  for (std::uint32_t t = 0; t < tiles(); ++t) {
    if (!ctx.runs(t)) continue;
    ScratchArena arena(ctx.scratch);
    const TensorView tokens = tokens_in(ctx, arena, t);
    const TensorView to = t == 0 ? y : arena.take(y.dtype, y.shape);
    const bool adds_positions = is_last(t) && config_.tensor.leads();
    const TensorView places = adds_positions ? positions(weights) : TensorView{};
    if (places.empty() || is_one_run(ctx)) {
      ctx.math.embed(ctx.stream, to, tokens, rows(ctx, weights, t), places, seq, first_position);
    } else {
      each_run(ctx, [&](Block of_rows, Block run) {
        ctx.math.embed(ctx.stream, row_slice(to, of_rows.begin, of_rows.count), part(tokens, of_rows.begin, {of_rows.count}),
                       rows(ctx, weights, t), places, run.count, run.begin);
      });
    }
    if (is_scaled()) ctx.math.multiply(ctx.stream, to, to, config_.embedding_factor);
    if (t != 0) ctx.math.convert(ctx.stream, y, to, Accumulate::yes);
  }
}

void Embedding::forward(LayerContext& ctx, const LayerTensors& t) const {
  check_forward(ctx, t, {.x = false});
  check("tokens", ctx.tokens, DType::i32, {ctx.shape.tokens()});
  embed(ctx, t.weights, t.y, ctx.shape.seq, first_position(ctx));
}

void Embedding::backward(LayerContext& ctx, const LayerTensors& t, Half half) const {
  check_backward(ctx, t, half, {.x = false});
  if (!has(half, Half::weight)) return;
  check("tokens", ctx.tokens, DType::i32, {ctx.shape.tokens()});
  for (std::uint32_t number = 0; number < tiles(); ++number) {
    if (!ctx.runs(number)) continue;
    ScratchArena arena(ctx.scratch);
    const bool last = is_last(number), leads = config_.tensor.leads();
    const TensorView all = last && learned_positions() ? positions(t.gradients) : TensorView{};
    // embed_grad() clears the rows of the positions that it gets. This clears the rows of other context ranks' positions or,
    // if the positions are not one run, all rows.
    const bool frozen_table = t.gradients[0].empty();
    const bool in_runs = !all.empty() && (frozen_table || !is_one_run(ctx));
    const bool sliced = !all.empty() && (in_runs || config_.context.ranks > 1);
    if (sliced && t.accumulate == Accumulate::no) ctx.math.zero(ctx.stream, all);
    const TensorView here = !leads || in_runs ? TensorView{}
                            : sliced          ? row_slice(all, first_position(ctx), ctx.shape.seq)
                                              : all;
    if (!frozen_table) {
      const auto tokens = tokens_in(ctx, arena, number);
      ctx.math.embed_grad(ctx.stream, rows(ctx, t.gradients, number), here, tokens, scaled(ctx, arena, t.dy), ctx.shape.seq,
                          t.accumulate);
    }
    if (in_runs && leads)
      each_run(ctx, [&](Block of_rows, Block run) {
        ctx.math.convert(ctx.stream, row_slice(all, run.begin, run.count), row_slice(t.dy, of_rows.begin, of_rows.count),
                         Accumulate::yes);
      });
    if (t.accumulate == Accumulate::yes) continue;
    if (!frozen_table) zero_rest(ctx, tile(ctx, t.gradients[0], number), number);
    if (last && !leads && !all.empty()) ctx.math.zero(ctx.stream, positions(t.gradients));
  }
}

void Embedding::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView, TensorView y, CacheViews cache,
                            std::int64_t position) const {
  check_decode(ctx, weights, cache, position);
  check("tokens", ctx.tokens, DType::i32, {1});
  check("y", y, config_.dtype, {1, config_.hidden});
  embed(ctx, weights, y, 1, position);
}

}  // namespace terrace::layers
