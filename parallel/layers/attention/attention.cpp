#include <terrace/parallel/layers/attention/attention.h>

#include <algorithm>
#include <functional>

namespace terrace::layers {
namespace {

// All queries of a sequence against all its keys.
AttentionBlock whole_block(const AttentionShape& s, std::int64_t window) {
  return {.batch = s.batch,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .queries = {0, s.seq, s.seq},
          .keys = {0, s.seq, s.seq},
          .window = window,
          .scores = s.scores};
}

// Calls f for each document, or once for whole sequences, with its shape, a function that takes its rows from a tensor of all
// rows, and its log-sum-exps.
template <class F>
void each_document(const LayerContext& ctx, const AttentionShape& s, const TensorView& lse, F&& f) {
  if (ctx.documents.whole_sequences()) return f(s, std::identity(), lse);
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (const auto& piece : ctx.documents.pieces(b, {0, s.seq})) {
      const auto row = b * s.seq + piece.begin, count = piece.count;
      auto document = s;
      document.batch = 1;
      document.seq = count;
      document.one_of_many = true;
      const auto rows = [=](const TensorView& all) { return row_slice(all, row, count); };
      f(document, rows, part(lse, row * s.heads, {1, s.heads, count}));
    }
}

}  // namespace

// Sizes are checked before they are used. Each tensor rank has whole heads.
Attention::Attention(const Transformer& config, std::int64_t block)
    : ResidualBranch("layers." + std::to_string(block) + ".attention", config, block, parts_of(checked(config), block)),
      block_(block),
      window_(config.window.of(block)) {}

ResidualBranch::Parts Attention::parts_of(const Transformer& config, std::int64_t block) {
  const std::int64_t kv = config.kv_heads * config.head_dim();
  return {.norm = config.names.attention_norm,
          .result_norm = config.names.attention_result_norm,
          .in = config.names.qkv,
          .out = config.names.attention_output,
          .in_outputs = {config.attended(), kv, kv},
          .in_ways = {config.tensor().ranks, config.kv_ways(), config.kv_ways()},
          .out_inputs = config.attended(),
          .in_result = "q, k and v",
          .tiles = config.attention_tiles,
          .is_attention = true,
          .skips_from = config.skips_from(block)};
}

AttentionShape Attention::attention_shape(BatchShape shape, const Heads& heads) const {
  return {.batch = shape.batch,
          .seq = shape.seq,
          .heads = heads.queries,
          .kv_heads = heads.keys,
          .head_dim = config_.head_dim(),
          .scores = config_.scores};
}

std::vector<TensorSpec> Attention::saved_of_middle(BatchShape shape) const {
  auto all = ResidualBranch::saved_of_middle(shape);
  all.push_back({"attention's result", config_.dtype, {shape.tokens(), config_.attended_here()}});
  all.push_back({"log-sum-exp of scores", accumulator_of(config_.dtype), {shape.batch, config_.heads_here(), shape.seq}});
  return all;
}

double Attention::middle_flops(BatchShape shape) const {
  return 2 * static_cast<double>(shape.tokens()) * pairs_twice(shape.seq) * static_cast<double>(config_.attended_here());
}

void Attention::attend(LayerContext& ctx, const AttentionShape& shape, TensorView out, TensorView lse, TensorView qkv) const {
  each_document(ctx, shape, lse, [&](const AttentionShape& one, const auto& of, const TensorView& sums) {
    if (window_ == 0) return ctx.math.attention(ctx.stream, one, of(out), sums, of(qkv));
    ctx.math.attention_block(ctx.stream, whole_block(one, window_), of(out), sums, of(qkv), of(qkv), Accumulate::no);
  });
}

void Attention::attend_grad(LayerContext& ctx, const AttentionShape& shape, TensorView dqkv, TensorView dout, TensorView out,
                            TensorView lse, TensorView qkv) const {
  each_document(ctx, shape, lse, [&](const AttentionShape& one, const auto& of, const TensorView& sums) {
    if (window_ == 0) return ctx.math.attention_grad(ctx.stream, one, of(dqkv), of(dout), of(out), sums, of(qkv));
    ctx.math.attention_block_grad(ctx.stream, whole_block(one, window_), of(dqkv), of(dqkv), of(dout), of(out), sums, of(qkv),
                                  of(qkv), Accumulate::no, Accumulate::no);
  });
}

// A query meets (S + 1) / 2 keys on average, and as many values. With a window of W positions, every query after the first W
// meets W keys.
double Attention::pairs_twice(std::int64_t seq) const {
  const auto s = static_cast<double>(seq), w = static_cast<double>(std::min(window_, seq));
  return window_ == 0 ? s + 1 : 2 * w - w * (w - 1) / s;
}

// If only a part of a head is rotated, each head is separate, because the other elements lie between those of two heads.
void Attention::rotate(LayerContext& ctx, TensorView qkv, std::int64_t first_position, bool inverse) const {
  const auto dim = config_.head_dim(), rotated = config_.rotated(block_), rows = qkv.shape[0], row = qkv.shape[1];
  const auto heads = config_.heads_here() + config_.kv_heads_here();
  if (rotated == 0) return;
  const auto turn = [&](const TensorView& some) {
    ctx.math.rotary(ctx.stream, some, row, ctx.shape.seq, first_position, config_.rotary(block_), inverse);
  };
  if (rotated == dim) return turn(part(qkv, 0, {rows, heads, dim}));
  for (std::int64_t head = 0; head < heads; ++head) turn(part(qkv, head * dim, {rows, 1, rotated}));
}

void Attention::rotate_slice(LayerContext& ctx, TensorView qkv, bool inverse) const {
  const auto runs = config_.context().runs(ctx.shape.seq);
  if (runs.size() == 1 && ctx.documents.whole_sequences()) return rotate(ctx, qkv, runs.front().begin, inverse);
  each_run(ctx,
           [&](comm::Block rows, comm::Block run) { rotate(ctx, row_slice(qkv, rows.begin, rows.count), run.begin, inverse); });
}

void Attention::save_middle(LayerContext& ctx, const LayerTensors& t, TensorView qkv) const {
  rotate_slice(ctx, qkv, false);
  attend(ctx, attention_shape(ctx.shape, heads_here()), t.saved[kAttended], t.saved[kLogSumExp], qkv);
}

void Attention::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView dqkv, TensorView dattended) const {
  attend_grad(ctx, attention_shape(ctx.shape, heads_here()), dqkv, dattended, t.saved[kAttended], t.saved[kLogSumExp],
              t.saved[kInResult]);
  rotate_slice(ctx, dqkv, true);
}

std::vector<TensorSpec> Attention::cache_of_middle(std::int64_t capacity) const {
  const Shape shape{config_.kv_heads, capacity, config_.head_dim()};
  return {{"keys", config_.dtype, shape}, {"values", config_.dtype, shape}};
}

void Attention::make_middle(LayerContext& ctx, const LayerTensors& t, TensorView attended, TensorView qkv) const {
  const auto cache = t.saved;
  const std::int64_t capacity = cache[0].shape[1], dim = config_.head_dim(), position = ctx.position;
  if (position >= capacity) fail("position " + std::to_string(position) + " is beyond the cache's " + std::to_string(capacity));
  rotate(ctx, qkv, position, false);
  for (std::int64_t kind = 0; kind < 2; ++kind) {  // keys, values
    for (std::int64_t group = 0; group < config_.kv_heads; ++group) {
      const std::int64_t head = config_.heads + kind * config_.kv_heads + group;
      ctx.math.convert(ctx.stream, part(cache[static_cast<std::size_t>(kind)], (group * capacity + position) * dim, {dim}),
                       part(qkv, head * dim, {dim}));
    }
  }
  // The caches, from the first position on that this position sees.
  const std::int64_t seen = window_ == 0 ? position + 1 : std::min(window_, position + 1);
  const auto from_seen = [&](const TensorView& all) { return part(all, (position + 1 - seen) * dim, all.shape); };
  ctx.math.attention_decode(ctx.stream, attention_shape({1, 1}, heads_here()), attended, qkv, from_seen(cache[0]),
                            from_seen(cache[1]), seen);
}

}  // namespace terrace::layers
