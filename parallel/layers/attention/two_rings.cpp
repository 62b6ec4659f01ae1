#include <terrace/parallel/layers/attention/two_rings.h>

#include <algorithm>
#include <cmath>

namespace terrace::layers {

std::uint32_t TwoRings::hops(BatchShape shape) const {
  if (window_ == 0) return ranks() - 1;
  // The number of earlier slices whose last key the first query sees.
  return static_cast<std::uint32_t>(std::min<std::int64_t>(ranks() - 1, (window_ - 2 + shape.seq) / shape.seq));
}

bool TwoRings::sees(BatchShape shape, std::uint32_t slice) const {
  const auto rank = config_.context.rank;
  if (slice > rank) return false;
  return window_ == 0 || (rank - slice) * shape.seq - (shape.seq - 1) < window_;
}

// All ranks count the last rank's products, so that their plans are equal.
double TwoRings::products(BatchShape shape) const {
  return 2 * static_cast<double>(queries(shape) * shape.seq * shape.seq * config_.head_dim());
}

double TwoRings::forward_flops(BatchShape shape) const {
  return 2 * static_cast<double>(shape.tokens() * config_.hidden * (in_.outputs() + out_.inputs())) +
         2 * (hops(shape) + 1) * products(shape);
}

std::vector<TensorSpec> TwoRings::saved_of_middle(BatchShape shape) const {
  auto all = Attention::saved_of_middle(shape);
  all[kProbabilities] = {"probabilities", config_.dtype, {ranks(), queries(shape) * shape.seq, shape.seq}};
  return all;
}

std::vector<TensorSpec> TwoRings::middle_work(LayerCall call, BatchShape shape) const {
  if (call != LayerCall::forward && call != LayerCall::backward) return {};
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

std::vector<TwoRings::Step> TwoRings::steps(LayerCall call, BatchShape shape) const {
  using What = Step::What;
  const bool forward = call == LayerCall::forward;
  std::vector<Step> all;
  const auto last = hops(shape);
  const auto ring = [&](What hop, What product) {
    for (std::uint32_t i = 0; i <= last; ++i) {
      if (i < last) all.push_back({hop, i + 1});
      all.push_back({product, i});
    }
  };
  ring(forward ? What::keys_hop : What::values_hop, What::scores);
  if (!forward) all.push_back({What::values_home});
  all.push_back({What::softmax});
  ring(forward ? What::values_hop : What::keys_hop, What::sums);
  if (!forward) all.push_back({What::keys_home});
  all.push_back({What::end});
  return all;
}

PhaseExchange TwoRings::hop(BatchShape shape, std::uint32_t from, std::uint32_t to) const {
  PhaseExchange exchange{.members = kContextRanks,
                         .from = from,
                         .to = to,
                         .sent = std::vector<std::int64_t>(ranks(), 0),
                         .received = std::vector<std::int64_t>(ranks(), 0)};
  const auto elements = keys(shape) * shape.seq * config_.head_dim();
  exchange.sent[(config_.context.rank + 1) % ranks()] = elements;
  exchange.received[slice(1)] = elements;
  return exchange;
}

Phase TwoRings::phase(LayerCall call, BatchShape shape, const Step& step) const {
  using What = Step::What;
  const bool forward = call == LayerCall::forward;
  const auto i = step.hops;
  const auto sum = i == 0 ? Access::overwrite : Access::update;
  const auto each = keys(shape) * shape.seq * config_.head_dim();
  const auto home = [&](std::uint32_t from, std::uint32_t to) {
    return PhaseExchange{.members = kContextRanks,
                         .from = from,
                         .to = to,
                         .sent = {each * ranks()},
                         .received = {each},
                         .operation = Operation::reduce_scatter};
  };
  Phase phase{.half = forward ? Half::both : Half::input, .scratch_bytes = 0};
  switch (step.what) {
    case What::keys_hop: phase.exchange = hop(shape, keys_of(i - 1), keys_of(i)); break;
    case What::values_hop: phase.exchange = hop(shape, values_of(i - 1), values_of(i)); break;
    case What::keys_home: phase.exchange = home(kDkeys, kOwnDkeys); break;
    case What::values_home: phase.exchange = home(kDvalues, kOwnDvalues); break;
    case What::scores:
      phase.saved = forward ? Access::update : Access::read;
      phase.flops = (forward ? 1 : 2) * products(shape);
      if (forward)
        phase.work = {{kQueries, Access::read}, {keys_of(i), Access::read}};
      else
        phase.work = {{kDattended, Access::read}, {values_of(i), Access::read}, {kDscores, sum}, {kDvalues, sum}};
      break;
    case What::softmax:
      phase.saved = forward ? Access::update : Access::read;
      if (!forward) phase.work = {{kDscores, Access::update}};
      break;
    case What::sums:
      phase.flops = (forward ? 1 : 2) * products(shape);
      if (forward) {
        phase.saved = Access::read;
        phase.work = {{values_of(i), Access::read}, {kSum, sum}};
      } else {
        phase.work = {
            {kQueries, Access::read}, {keys_of(i), Access::read}, {kDscores, Access::read}, {kDqueries, sum}, {kDkeys, sum}};
      }
      break;
    case What::end:
      if (forward) {
        phase.saved = Access::update;
        phase.work = {{kSum, Access::read}, {kQueries, Access::overwrite}};
      } else {
        phase.carried = Access::overwrite;
        phase.work = {{kDqueries, Access::read},
                      {kOwnDkeys, Access::read},
                      {kOwnDvalues, Access::read},
                      {kQueries, Access::overwrite},
                      {kKeys, Access::overwrite}};
      }
      break;
  }
  return phase;
}

std::vector<Phase> TwoRings::middle_phases(LayerCall call, BatchShape shape) const {
  if (call != LayerCall::forward && call != LayerCall::backward) return {};
  std::vector<Phase> all;
  for (const auto& step : steps(call, shape)) all.push_back(phase(call, shape, step));
  return all;
}

std::vector<std::uint32_t> TwoRings::begins_middle(LayerCall call) const {
  if (call == LayerCall::forward) return {kQueries, kKeys, kValues};
  return {kQueries, kKeys, kValues, kDattended};
}

template <class F>
void TwoRings::each_head(BatchShape shape, F&& f) const {
  const auto heads = config_.heads_here(), kv = config_.kv_heads_here();
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h) f(b * heads + h, b * kv + h / (heads / kv));
}

void TwoRings::deal(LayerContext& ctx, TensorView rows, std::int64_t first, std::int64_t heads, TensorView by_head,
                    Way way) const {
  const auto dim = config_.head_dim();
  for (std::int64_t b = 0; b < ctx.shape.batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h) {
      const auto of_rows = row_slice(rows, b * ctx.shape.seq, ctx.shape.seq),
                 of_head = matrix(ctx.shape, by_head, b * heads + h, dim);
      if (way == Way::pack)
        ctx.math.columns(ctx.stream, of_head, 0, of_rows, first + h * dim, dim);
      else
        ctx.math.columns(ctx.stream, of_rows, first + h * dim, of_head, 0, dim);
    }
}

void TwoRings::save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const {
  rotate_slice(ctx, qkv, false);
  const auto heads = config_.heads_here(), kv = config_.kv_heads_here(), dim = config_.head_dim();
  deal(ctx, qkv, 0, heads, t.work[kQueries], Way::pack);
  deal(ctx, qkv, heads * dim, kv, t.work[kKeys], Way::pack);
  deal(ctx, qkv, (heads + kv) * dim, kv, t.work[kValues], Way::pack);
}

void TwoRings::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView, TensorView dattended) const {
  const auto heads = config_.heads_here(), kv = config_.kv_heads_here(), dim = config_.head_dim();
  const auto qkv = t.saved[kInResult];
  deal(ctx, qkv, 0, heads, t.work[kQueries], Way::pack);
  deal(ctx, qkv, heads * dim, kv, t.work[kKeys], Way::pack);
  deal(ctx, qkv, (heads + kv) * dim, kv, t.work[kValues], Way::pack);
  deal(ctx, dattended, 0, heads, t.work[kDattended], Way::pack);
}

void TwoRings::run_middle(LayerContext& ctx, const LayerTensors& t, LayerCall call, std::uint32_t number) const {
  const bool forward = call == LayerCall::forward;
  const auto [what, came] = steps(call, ctx.shape)[number];
  const double scale = config_.scores.factor(config_.head_dim());
  switch (what) {
    case Step::What::scores: return forward ? forward_scores(ctx, t, came) : backward_scores(ctx, t, came);
    case Step::What::sums: return forward ? forward_sums(ctx, t, came) : backward_sums(ctx, t, came);
    case Step::What::end: return forward ? end_forward(ctx, t) : end_backward(ctx, t);
    case Step::What::softmax:
      return each_rows(ctx, [&](const ScoreRows& rows) {
        if (forward)
          ctx.math.softmax_rows(ctx.stream, rows, t.saved[kProbabilities], scale);
        else
          ctx.math.softmax_rows_grad(ctx.stream, rows, t.work[kDscores], t.saved[kProbabilities], scale);
      });
    default: return;  // the engine carries out exchanges
  }
}

template <class F>
void TwoRings::each_rows(const LayerContext& ctx, F&& f) const {
  const auto& shape = ctx.shape;
  const auto first = config_.context.rank * shape.seq;
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

void TwoRings::forward_scores(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  const auto& shape = ctx.shape;
  const auto from = slice(hops);
  if (!sees(shape, from)) return;
  const auto dim = config_.head_dim();
  each_head(shape, [&](std::int64_t q, std::int64_t k) {
    ctx.math.matmul(ctx.stream, scores(shape, t.saved[kProbabilities], from, q), matrix(shape, t.work[kQueries], q, dim),
                    Transpose::no, matrix(shape, t.work[keys_of(hops)], k, dim), Transpose::yes);
  });
}

// Every query sees its own position, so the own slice begins all sums.
void TwoRings::forward_sums(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  const auto& shape = ctx.shape;
  const auto from = slice(hops);
  if (!sees(shape, from)) return;
  const auto dim = config_.head_dim();
  each_head(shape, [&](std::int64_t q, std::int64_t k) {
    ctx.math.matmul(ctx.stream, matrix(shape, t.work[kSum], q, dim), scores(shape, t.saved[kProbabilities], from, q),
                    Transpose::no, matrix(shape, t.work[values_of(hops)], k, dim), Transpose::no, {},
                    hops == 0 ? Accumulate::no : Accumulate::yes);
  });
}

// Gradients of the probabilities and of the values. If query heads share values, their parts are added in ascending order of
// heads.
void TwoRings::backward_scores(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  const auto& shape = ctx.shape;
  const auto from = slice(hops);
  const auto dim = config_.head_dim();
  if (hops == 0) ctx.math.zero(ctx.stream, t.work[kDvalues]);
  if (!sees(shape, from)) return;
  each_head(shape, [&](std::int64_t q, std::int64_t k) {
    const auto dattended = matrix(shape, t.work[kDattended], q, dim);
    ctx.math.matmul(ctx.stream, scores(shape, t.work[kDscores], from, q), dattended, Transpose::no,
                    matrix(shape, t.work[values_of(hops)], k, dim), Transpose::yes);
    ctx.math.matmul(ctx.stream, matrix(shape, t.work[kDvalues], from * keys(shape) + k, dim),
                    scores(shape, t.saved[kProbabilities], from, q), Transpose::yes, dattended, Transpose::no, {},
                    Accumulate::yes);
  });
}

void TwoRings::backward_sums(LayerContext& ctx, const LayerTensors& t, std::uint32_t hops) const {
  const auto& shape = ctx.shape;
  const auto from = slice(hops);
  const auto dim = config_.head_dim();
  if (hops == 0) ctx.math.zero(ctx.stream, t.work[kDkeys]);
  if (!sees(shape, from)) return;
  each_head(shape, [&](std::int64_t q, std::int64_t k) {
    const auto dscores = scores(shape, t.work[kDscores], from, q);
    ctx.math.matmul(ctx.stream, matrix(shape, t.work[kDqueries], q, dim), dscores, Transpose::no,
                    matrix(shape, t.work[keys_of(hops)], k, dim), Transpose::no, {},
                    hops == 0 ? Accumulate::no : Accumulate::yes);
    ctx.math.matmul(ctx.stream, matrix(shape, t.work[kDkeys], from * keys(shape) + k, dim), dscores, Transpose::yes,
                    matrix(shape, t.work[kQueries], q, dim), Transpose::no, {}, Accumulate::yes);
  });
}

void TwoRings::end_forward(LayerContext& ctx, const LayerTensors& t) const {
  ctx.math.convert(ctx.stream, t.work[kQueries], t.work[kSum]);
  deal(ctx, t.saved[kAttended], 0, config_.heads_here(), t.work[kQueries], Way::unpack);
}

void TwoRings::end_backward(LayerContext& ctx, const LayerTensors& t) const {
  constexpr std::size_t kDqkv = 0;  // position in what ResidualBranch carries
  const auto heads = config_.heads_here(), kv = config_.kv_heads_here(), dim = config_.head_dim();
  const auto dqkv = t.carried[kDqkv];
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
