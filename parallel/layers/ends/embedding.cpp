#include <terrace/parallel/layers/ends/embedding.h>

namespace terrace::layers {

Embedding::Embedding(const Transformer& config) : TransformerLayer("embedding", config, {.x = false}) {
  const Init init{InitKind::normal, config.init_std};
  params_.push_back(table_of(config, config.names.embedding));
  if (learned_positions())
    params_.push_back(
        {.name = weight_name(config.names.positions), .shape = {config.seq_len, config.hidden}, .init = init, .unit = 1});
}

TensorView Embedding::positions(Tensors tensors) const { return learned_positions() ? tensors[1] : TensorView{}; }

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

void Embedding::describe_call(CallSteps& steps, LayerCall call, BatchShape shape) const {
  const bool backward = call == LayerCall::backward;
  for (std::uint32_t tile = 0; tile < tiles(); ++tile) {
    std::vector<PhaseParam> used{{0, tile}};
    if (is_last(tile) && learned_positions()) used.push_back({1});
    auto run = [this, call, tile](LayerContext& ctx, const LayerTensors& t) {
      check("tokens", ctx.tokens, DType::i32, {ctx.shape.tokens()});
      if (call == LayerCall::forward) embed(ctx, t, first_position(ctx), tile);
      if (call == LayerCall::decode) embed(ctx, t, ctx.position, tile);
      if (call == LayerCall::backward && has(ctx.half, Half::weight)) embed_grad(ctx, t, tile);
    };
    Phase phase{.scratch_bytes = scratch_of(shape, backward || tiles() == 1 ? is_scaled() : tile != 0)};
    (backward ? phase.gradients : phase.weights) = used;
    if (backward) phase.half = Half::weight, phase.dy = true;
    if (!backward) phase.y = tile == 0 ? Access::overwrite : Access::update;
    tiles() == 1 ? steps.compute(std::move(run), phase.scratch_bytes) : steps.compute(std::move(phase), std::move(run));
  }
  if (tiles() > 1 && backward)  // tokens have no gradient
    steps.compute({.half = Half::input}, [](LayerContext&, const LayerTensors&) {});
}

void Embedding::embed(LayerContext& ctx, const LayerTensors& t, std::int64_t first_position, std::uint32_t number) const {
  ScratchArena arena(ctx.scratch);
  const TensorView tokens = tokens_in(ctx, arena, number), table = rows_with_token(ctx, t.weights[0], number);
  const TensorView to = number == 0 ? t.y : arena.take(t.y.dtype, t.y.shape);
  const bool adds_positions = is_last(number) && config_.tensor().leads();
  const TensorView places = adds_positions ? positions(t.weights) : TensorView{};
  if (places.empty() || is_one_run(ctx)) {
    ctx.math.embed(ctx.stream, to, tokens, table, places, ctx.shape.seq, first_position);
  } else {
    each_run(ctx, [&](comm::Block of_rows, comm::Block run) {
      ctx.math.embed(ctx.stream, row_slice(to, of_rows.begin, of_rows.count), part(tokens, of_rows.begin, {of_rows.count}),
                     table, places, run.count, run.begin);
    });
  }
  if (is_scaled()) ctx.math.multiply(ctx.stream, to, to, config_.embedding_factor);
  if (number != 0) ctx.math.convert(ctx.stream, t.y, to, Accumulate::yes);
}

void Embedding::embed_grad(LayerContext& ctx, const LayerTensors& t, std::uint32_t number) const {
  ScratchArena arena(ctx.scratch);
  const bool last = is_last(number), leads = config_.tensor().leads();
  const TensorView all = last && learned_positions() ? positions(t.gradients) : TensorView{};
  // Math::embed_grad() clears the rows of the positions that it gets. This clears the rows of other context ranks' positions
  // or, if the positions are not one run, all rows.
  const bool frozen_table = t.gradients[0].empty();
  const bool in_runs = !all.empty() && (frozen_table || !is_one_run(ctx));
  const bool sliced = !all.empty() && (in_runs || config_.context().ranks > 1);
  if (sliced && t.accumulate == Accumulate::no) ctx.math.zero(ctx.stream, all);
  const TensorView here = !leads || in_runs ? TensorView{} : sliced ? row_slice(all, first_position(ctx), ctx.shape.seq) : all;
  if (!frozen_table) {
    const auto tokens = tokens_in(ctx, arena, number);
    ctx.math.embed_grad(ctx.stream, rows_with_token(ctx, t.gradients[0], number), here, tokens, scaled(ctx, arena, t.dy),
                        ctx.shape.seq, t.accumulate);
  }
  if (in_runs && leads)
    each_run(ctx, [&](comm::Block of_rows, comm::Block run) {
      ctx.math.convert(ctx.stream, row_slice(all, run.begin, run.count), row_slice(t.dy, of_rows.begin, of_rows.count),
                       Accumulate::yes);
    });
  if (t.accumulate == Accumulate::yes) return;
  if (!frozen_table) zero_rest(ctx, t.gradients[0], number);
  if (last && !leads && !all.empty()) ctx.math.zero(ctx.stream, positions(t.gradients));
}

}  // namespace terrace::layers
