#include <terrace/parallel/layers/attention/two_rings.h>

namespace terrace::layers {

bool TwoRings::sees(BatchShape shape, std::uint32_t slice) const {
  const auto rank = config_.context().rank;
  if (slice > rank) return false;
  return window_ == 0 || (rank - slice) * shape.seq - (shape.seq - 1) < window_;
}

// All ranks count the last rank's products, so that their plans are equal.
double TwoRings::products(BatchShape shape) const {
  return 2 * static_cast<double>(queries(shape) * shape.seq * shape.seq * config_.head_dim());
}

std::vector<TensorSpec> TwoRings::saved_of_middle(BatchShape shape) const {
  auto all = Attention::saved_of_middle(shape);
  all[kProbabilities - std::size_t{kInResult}] = {
      "probabilities", config_.dtype, {ranks(), queries(shape) * shape.seq, shape.seq}};
  return all;
}

std::vector<TensorSpec> TwoRings::middle_work(LayerCall call, BatchShape shape) const {
  const auto dim = config_.head_dim();
  const auto dtype = config_.dtype, sums = accumulator_of(dtype);
  const Shape of_queries{queries(shape) * shape.seq, dim}, of_keys{keys(shape) * shape.seq, dim};
  std::vector<TensorSpec> all{{"queries by head", dtype, of_queries},
                              {"keys by head", dtype, of_keys},
                              {"keys by head", dtype, of_keys},
                              {"values by head", dtype, of_keys},
                              {"values by head", dtype, of_keys}};
  if (call == LayerCall::forward) {
    all.push_back({"sum of values", sums, of_queries});
    return all;
  }
  const Shape of_all_keys{ranks(), keys(shape) * shape.seq, dim};
  all.insert(all.end(), {{"gradient of attention's result", dtype, of_queries},
                         {"gradient of scores", dtype, {ranks(), queries(shape) * shape.seq, shape.seq}},
                         {"gradient of queries", sums, of_queries},
                         {"gradient of all keys", sums, of_all_keys},
                         {"gradient of all values", sums, of_all_keys},
                         {"gradient of keys", sums, of_keys},
                         {"gradient of values", sums, of_keys}});
  return all;
}

template <class F>
void TwoRings::each_rows(const LayerContext& ctx, F&& f) const {
  const auto& shape = ctx.shape;
  const auto first = config_.context().rank * shape.seq;
  ScoreRows rows{.parts = ranks(),
                 .matrices = queries(shape),
                 .every = shape.seq,
                 .keys = shape.seq,
                 .count_of_matrices = queries(shape),
                 .count = shape.seq,
                 .position = first,
                 .window = window_};
  if (ctx.documents.whole_sequences()) return f(rows);
  rows.count_of_matrices = config_.heads_here();
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (const auto& piece : ctx.documents.pieces(b, {first, shape.seq})) {
      rows.first_matrix = b * config_.heads_here();
      rows.first = piece.begin - first;
      rows.count = piece.count;
      rows.position = piece.begin;
      rows.begin = piece.document;
      f(rows);
    }
}

// The first product overwrites the sums that the others update.
void TwoRings::describe_ring(CallSteps& steps, BatchShape shape, Buffer buffer, const Phase& what, Product product) const {
  const auto last = hops(shape);
  for (std::uint32_t i = 0; i <= last; ++i) {
    if (i < last) steps.exchange(what.half, hop_of(config_.context(), buffer(i), buffer(i + 1), 1, elements(shape)));
    auto phase = what;
    for (auto& used : phase.work)
      if (i == 0 && used.access == Access::update) used.access = Access::overwrite;
    phase.work.push_back({buffer(i), Access::read});
    steps.compute(std::move(phase), [=, this](LayerContext& ctx, const LayerTensors& t) { (this->*product)(ctx, t, i); });
  }
}

void TwoRings::describe_forward(CallSteps& steps, BatchShape shape) const {
  const double scale = config_.scores.factor(config_.head_dim());
  describe_ring(steps, shape, keys_of, {.saved = Access::update, .work = {{kQueries, Access::read}}, .flops = products(shape)},
                &TwoRings::forward_scores);
  steps.compute({.saved = Access::update}, [=, this](LayerContext& ctx, const LayerTensors& t) {
    each_rows(ctx, [&](const ScoreRows& rows) { ctx.math.softmax_rows(ctx.stream, rows, t.saved[kProbabilities], scale); });
  });
  describe_ring(steps, shape, values_of, {.saved = Access::read, .work = {{kSum, Access::update}}, .flops = products(shape)},
                &TwoRings::forward_sums);
  steps.compute({.saved = Access::update, .work = {{kSum, Access::read}, {kQueries, Access::overwrite}}},
                [this](LayerContext& ctx, const LayerTensors& t) {
                  ctx.math.convert(ctx.stream, t.work[kQueries], t.work[kSum]);
                  deal(ctx, t.saved[kAttended], 0, config_.heads_here(), t.work[kQueries], Way::unpack);
                });
}

// The sums of the gradients of values, and of keys, go to the ranks of their slices.
void TwoRings::describe_backward(CallSteps& steps, BatchShape shape) const {
  constexpr auto half = Half::input;
  const double scale = config_.scores.factor(config_.head_dim());
  describe_ring(steps, shape, values_of,
                {.half = half,
                 .saved = Access::read,
                 .work = {{kDattended, Access::read}, {kDscores, Access::update}, {kDvalues, Access::update}},
                 .flops = 2 * products(shape)},
                &TwoRings::backward_scores);
  steps.exchange(half, reduce_scatter(mesh::kContextRanks, kDvalues, kOwnDvalues, elements(shape), ranks()));
  steps.compute({.half = half, .saved = Access::read, .work = {{kDscores, Access::update}}},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  each_rows(ctx, [&](const ScoreRows& rows) {
                    ctx.math.softmax_rows_grad(ctx.stream, rows, t.work[kDscores], t.saved[kProbabilities], scale);
                  });
                });
  const TensorSpec of_head{"", config_.dtype, {shape.seq, shape.seq}};
  describe_ring(
      steps, shape, keys_of,
      {.half = half,
       .work = {{kQueries, Access::read}, {kDscores, Access::read}, {kDqueries, Access::update}, {kDkeys, Access::update}},
       .scratch_bytes = capped() ? scratch_of({of_head, of_head}) : 0,
       .flops = (capped() ? 3 : 2) * products(shape)},
      &TwoRings::backward_sums);
  steps.exchange(half, reduce_scatter(mesh::kContextRanks, kDkeys, kOwnDkeys, elements(shape), ranks()));
  steps.compute({.half = half,
                 .carried = Access::overwrite,
                 .work = {{kDqueries, Access::read},
                          {kOwnDkeys, Access::read},
                          {kOwnDvalues, Access::read},
                          {kQueries, Access::overwrite},
                          {kKeys, Access::overwrite}}},
                [this](LayerContext& ctx, const LayerTensors& t) { end_backward(ctx, t); });
}

std::vector<std::uint32_t> TwoRings::begins_middle(LayerCall call) const {
  if (call == LayerCall::forward) return {kQueries, kKeys, kValues};
  return {kQueries, kKeys, kValues, kDattended};
}

// Nothing if this rank's queries see no key of the slice.
template <class F>
void TwoRings::each_head(const LayerContext& ctx, std::uint32_t hops, F&& f) const {
  const auto heads = config_.heads_here(), kv = config_.kv_heads_here();
  const auto from = slice(hops);
  if (!sees(ctx.shape, from)) return;
  for (std::int64_t b = 0; b < ctx.shape.batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h) f(b * heads + h, b * kv + h / (heads / kv), from);
}

void TwoRings::deal(LayerContext& ctx, TensorView rows, std::int64_t first, std::int64_t heads, TensorView by_head,
                    Way way) const {
  const auto dim = config_.head_dim();
  for (std::int64_t b = 0; b < ctx.shape.batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto of_rows = row_slice(rows, b * ctx.shape.seq, ctx.shape.seq),
                 of_head = matrix(ctx.shape, by_head, b * heads + h, dim);
      move_columns(ctx, way, of_rows, first + h * dim, of_head, 0, dim);
    }
}

void TwoRings::save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const {
  rotate_slice(ctx, qkv, false);
  deal_out(ctx, t, qkv);
}

void TwoRings::deal_out(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const {
  const auto heads = config_.heads_here(), kv = config_.kv_heads_here(), dim = config_.head_dim();
  deal(ctx, qkv, 0, heads, t.work[kQueries], Way::pack);
  deal(ctx, qkv, heads * dim, kv, t.work[kKeys], Way::pack);
  deal(ctx, qkv, (heads + kv) * dim, kv, t.work[kValues], Way::pack);
}

void TwoRings::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView, TensorView dattended) const {
  deal_out(ctx, t, t.saved[kInResult]);
  deal(ctx, dattended, 0, config_.heads_here(), t.work[kDattended], Way::pack);
}

void TwoRings::forward_scores(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  each_head(ctx, hops, [&](std::int64_t q, std::int64_t k, std::uint32_t from) {
    score(ctx, t, scores(ctx.shape, t.saved[kProbabilities], from, q), q, keys_of(hops), k);
  });
}

// The softmax multiplies scores by the factor, so the cap is divided by it.
void TwoRings::score(LayerContext& ctx, const LayerTensors& t, TensorView to, std::int64_t q, std::uint32_t keys,
                     std::int64_t k) const {
  ctx.math.matmul(ctx.stream, to, head(ctx, t, kQueries, q), Transpose::no, head(ctx, t, keys, k), Transpose::yes);
  if (capped()) ctx.math.soft_cap(ctx.stream, to, to, cap());
}

// Every query sees its own position, so the own slice begins all sums.
void TwoRings::forward_sums(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  each_head(ctx, hops, [&](std::int64_t q, std::int64_t k, std::uint32_t from) {
    ctx.math.matmul(ctx.stream, head(ctx, t, kSum, q), scores(ctx.shape, t.saved[kProbabilities], from, q), Transpose::no,
                    head(ctx, t, values_of(hops), k), Transpose::no, {}, hops == 0 ? Accumulate::no : Accumulate::yes);
  });
}

// Gradients of the probabilities and of the values. If query heads share values, their parts are added in ascending order of
// heads.
void TwoRings::backward_scores(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  if (hops == 0) ctx.math.zero(ctx.stream, t.work[kDvalues]);
  each_head(ctx, hops, [&](std::int64_t q, std::int64_t k, std::uint32_t from) {
    const auto dattended = head(ctx, t, kDattended, q);
    ctx.math.matmul(ctx.stream, scores(ctx.shape, t.work[kDscores], from, q), dattended, Transpose::no,
                    head(ctx, t, values_of(hops), k), Transpose::yes);
    ctx.math.matmul(ctx.stream, head(ctx, t, kDvalues, from * keys(ctx.shape) + k),
                    scores(ctx.shape, t.saved[kProbabilities], from, q), Transpose::yes, dattended, Transpose::no, {},
                    Accumulate::yes);
  });
}

// The gradient of capped scores needs them again: they are not saved, because the probabilities took their place.
void TwoRings::backward_sums(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  if (hops == 0) ctx.math.zero(ctx.stream, t.work[kDkeys]);
  each_head(ctx, hops, [&](std::int64_t q, std::int64_t k, std::uint32_t from) {
    auto dscores = scores(ctx.shape, t.work[kDscores], from, q);
    if (capped()) {
      ScratchArena arena(ctx.scratch);
      const auto again = arena.take(config_.dtype, dscores.shape), uncapped = arena.take(config_.dtype, dscores.shape);
      score(ctx, t, again, q, keys_of(hops), k);
      ctx.math.soft_cap_grad(ctx.stream, uncapped, dscores, again, cap());
      dscores = uncapped;
    }
    ctx.math.matmul(ctx.stream, head(ctx, t, kDqueries, q), dscores, Transpose::no, head(ctx, t, keys_of(hops), k),
                    Transpose::no, {}, hops == 0 ? Accumulate::no : Accumulate::yes);
    ctx.math.matmul(ctx.stream, head(ctx, t, kDkeys, from * keys(ctx.shape) + k), dscores, Transpose::yes,
                    head(ctx, t, kQueries, q), Transpose::no, {}, Accumulate::yes);
  });
}

void TwoRings::end_backward(LayerContext& ctx, const LayerTensors& t) const {
  const auto heads = config_.heads_here(), kv = config_.kv_heads_here(), dim = config_.head_dim();
  const auto dqkv = t.carried[kDin];
  const auto put = [&](std::uint32_t sum, std::uint32_t rounded, std::int64_t first, std::int64_t count) {
    ctx.math.convert(ctx.stream, t.work[rounded], t.work[sum]);
    deal(ctx, dqkv, first * dim, count, t.work[rounded], Way::unpack);
  };
  put(kDqueries, kQueries, 0, heads);
  put(kOwnDkeys, kKeys, heads, kv);
  put(kOwnDvalues, kKeys, heads + kv, kv);
  rotate_slice(ctx, dqkv, true);
}

}  // namespace terrace::layers
