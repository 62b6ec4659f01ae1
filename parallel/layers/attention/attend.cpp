#include <terrace/parallel/layers/attention/attend.h>

#include <algorithm>

#include <terrace/parallel/layers/parts/views.h>

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

void attend_sequences(LayerContext& ctx, const AttentionShape& shape, std::int64_t window, TensorView out, TensorView lse,
                      TensorView qkv) {
  if (window == 0) return ctx.math.attention(ctx.stream, shape, out, lse, qkv);
  ctx.math.attention_block(ctx.stream, whole_block(shape, window), out, lse, qkv, qkv, Accumulate::no);
}

void attend_sequences_grad(LayerContext& ctx, const AttentionShape& shape, std::int64_t window, TensorView dqkv,
                           TensorView dout, TensorView out, TensorView lse, TensorView qkv) {
  if (window == 0) return ctx.math.attention_grad(ctx.stream, shape, dqkv, dout, out, lse, qkv);
  ctx.math.attention_block_grad(ctx.stream, whole_block(shape, window), dqkv, dqkv, dout, out, lse, qkv, qkv, Accumulate::no,
                                Accumulate::no);
}

// Calls f for each document with its shape, a function that takes the document's rows from a tensor of all rows, and its
// log-sum-exps.
template <class F>
void each_document(const LayerContext& ctx, const SequenceAttention& attention, const TensorView& lse, F&& f) {
  const auto& s = attention.shape;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (const auto& piece : ctx.documents.pieces(b, {0, s.seq})) {
      const auto row = b * s.seq + piece.begin, count = piece.count;
      AttentionShape document = s;
      document.batch = 1;
      document.seq = count;
      document.one_of_many = true;
      f(
          document, [=](const TensorView& all) { return row_slice(all, row, count); },
          part(lse, row * s.heads, {1, s.heads, count}));
    }
}

}  // namespace

void attend(LayerContext& ctx, const SequenceAttention& attention, TensorView out, TensorView lse, TensorView qkv) {
  if (ctx.documents.whole_sequences()) return attend_sequences(ctx, attention.shape, attention.window, out, lse, qkv);
  each_document(ctx, attention, lse, [&](const AttentionShape& shape, const auto& of, const TensorView& sums) {
    attend_sequences(ctx, shape, attention.window, of(out), sums, of(qkv));
  });
}

void attend_grad(LayerContext& ctx, const SequenceAttention& attention, TensorView dqkv, TensorView dout, TensorView out,
                 TensorView lse, TensorView qkv) {
  if (ctx.documents.whole_sequences())
    return attend_sequences_grad(ctx, attention.shape, attention.window, dqkv, dout, out, lse, qkv);
  each_document(ctx, attention, lse, [&](const AttentionShape& shape, const auto& of, const TensorView& sums) {
    attend_sequences_grad(ctx, shape, attention.window, of(dqkv), of(dout), of(out), sums, of(qkv));
  });
}

// A query meets (S + 1) / 2 keys on average, and as many values. With a window of W positions, every query after the first W
// meets W keys.
double pairs_twice(std::int64_t seq, std::int64_t window) {
  const auto s = static_cast<double>(seq), w = static_cast<double>(std::min(window, seq));
  return window == 0 ? s + 1 : 2 * w - w * (w - 1) / s;
}

}  // namespace terrace::layers
