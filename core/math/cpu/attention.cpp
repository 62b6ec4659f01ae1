// Causal attention by blocks of query rows: the scores of a block against all its keys, one softmax per row, one product with
// the values. At any time, a task holds only the scores of one block; the backward recomputes them from the log-sum-exp.
#include <terrace/core/math/cpu/attention_rows.h>
#include <terrace/core/math/cpu/ops.h>
#include <terrace/core/math/cpu/tile_product.h>

namespace terrace::cpu {
namespace {

constexpr std::int64_t kQueryTask = 512;  // query rows per task of the forward

// Positions of the heads of q, k and v in a row of the fused buffer.
struct Heads {
  explicit Heads(const AttentionShape& s)
      : dim(s.head_dim),
        row((s.heads + 2 * s.kv_heads) * s.head_dim),
        k(s.heads * s.head_dim),
        v(k + s.kv_heads * s.head_dim) {}
  std::int64_t dim, row, k, v;
};

template <class T>
void attend(Compute compute, const AttentionShape& s, T* out, Acc<T>* lse, const T* qkv, std::int64_t batch, std::int64_t head,
            std::int64_t begin, std::int64_t end) {
  using A = Acc<T>;
  const Heads at(s);
  const std::int64_t group = head / (s.heads / s.kv_heads), width = s.heads * s.head_dim;
  const T* const rows = qkv + batch * s.seq * at.row;
  const auto keys = arithmetic_rows(compute, rows + at.k + group * at.dim, end, at.dim, at.row, Scratch::operand_b);
  const auto values = arithmetic_rows(compute, rows + at.v + group * at.dim, end, at.dim, at.row, Scratch::operand_c);
  A* const scores = scratch<A>(Scratch::scores, kQueryBlock * padded(s.seq));
  for (std::int64_t first = begin; first < end; first += kQueryBlock) {
    const std::int64_t count = std::min(kQueryBlock, end - first), seen = first + count, stride = padded(seen);
    const auto queries =
        arithmetic_rows(compute, rows + first * at.row + head * at.dim, count, at.dim, at.row, Scratch::operand_a);
    tile_product(compute.kernels, scores, stride, Operand<A>{queries.data, queries.stride, false},
                 Operand<A>{keys.data, keys.stride, true}, count, seen, at.dim);
    for (std::int64_t i = 0; i < count; ++i) {
      A* const row = scores + i * stride;
      const A left = make_scores(compute, s.scores, at.dim, row, first + i + 1);
      lse[(batch * s.heads + head) * s.seq + first + i] =
          softmax_for<A>(compute.kernels).softmax_row(row, first + i + 1, stride, left);
    }
    T* const to = out + (batch * s.seq + first) * width + head * at.dim;
    const Operand<A> probabilities{scores, stride, false}, v{values.data, values.stride, false};
    if constexpr (std::is_same_v<T, A>) {
      tile_product(compute.kernels, to, width, probabilities, v, count, at.dim, seen);
    } else {
      A* const sums = scratch<A>(Scratch::tile, kQueryBlock * at.dim);
      tile_product(compute.kernels, sums, at.dim, probabilities, v, count, at.dim, seen);
      const auto kernel = convert_kernel(compute.kernels, dtype_of_storage<T>, DType::fp32, false);
      for (std::int64_t i = 0; i < count; ++i) kernel(to + i * width, sums + i * at.dim, at.dim);
    }
  }
}

// One key-value head and its group of query heads: dk and dv are summed over query heads, then over query blocks, ascending.
template <class T>
void attend_grad(Compute compute, const AttentionShape& s, T* dqkv, const T* dout, const T* out, const Acc<T>* lse,
                 const T* qkv, std::int64_t batch, std::int64_t group) {
  using A = Acc<T>;
  const Heads at(s);
  const std::int64_t heads_a_group = s.heads / s.kv_heads, width = s.heads * s.head_dim;
  const T* const rows = qkv + batch * s.seq * at.row;
  T* const drows = dqkv + batch * s.seq * at.row;
  const auto keys = arithmetic_rows(compute, rows + at.k + group * at.dim, s.seq, at.dim, at.row, Scratch::operand_b);
  const auto values = arithmetic_rows(compute, rows + at.v + group * at.dim, s.seq, at.dim, at.row, Scratch::operand_c);
  A* const dkeys = scratch<A>(Scratch::gradients, 2 * s.seq * at.dim);
  A* const dvalues = dkeys + s.seq * at.dim;
  std::fill(dkeys, dkeys + 2 * s.seq * at.dim, A{0});
  A* const p = scratch<A>(Scratch::scores, kQueryBlock * padded(s.seq));
  A* const dp = scratch<A>(Scratch::probabilities, kQueryBlock * padded(s.seq));
  A* const dqueries = scratch<A>(Scratch::tile, kQueryBlock * at.dim);
  const auto deliver = convert_kernel(compute.kernels, dtype_of_storage<T>, dtype_of_storage<A>, false);

  for (std::int64_t head = group * heads_a_group; head < (group + 1) * heads_a_group; ++head) {
    for (std::int64_t first = 0; first < s.seq; first += kQueryBlock) {
      const std::int64_t count = std::min(kQueryBlock, s.seq - first), seen = first + count, stride = padded(seen);
      const T* const out_rows = out + (batch * s.seq + first) * width + head * at.dim;
      const T* const dout_rows = dout + (batch * s.seq + first) * width + head * at.dim;
      const auto q = arithmetic_rows(compute, rows + first * at.row + head * at.dim, count, at.dim, at.row, Scratch::operand_a);
      const auto d = arithmetic_rows(compute, dout_rows, count, at.dim, width, Scratch::operand_d);
      const Operand<A> q_rows{q.data, q.stride, false}, d_rows{d.data, d.stride, false};
      // p = the softmax, recomputed; dp = p·(dout·vᵀ − rowsum(dout·out))·scale
      tile_product(compute.kernels, p, stride, q_rows, Operand<A>{keys.data, keys.stride, true}, count, seen, at.dim);
      tile_product(compute.kernels, dp, stride, d_rows, Operand<A>{values.data, values.stride, true}, count, seen, at.dim);
      for (std::int64_t i = 0; i < count; ++i) {
        const A inner = kernels_for<T>(compute.kernels).dot(dout_rows + i * width, out_rows + i * width, at.dim);
        softmax_grad(compute, s.scores, at.dim, p + i * stride, dp + i * stride, first + i + 1, stride,
                     lse[(batch * s.heads + head) * s.seq + first + i], inner);
      }
      tile_product(compute.kernels, dqueries, at.dim, Operand<A>{dp, stride, false}, Operand<A>{keys.data, keys.stride, false},
                   count, at.dim, seen);
      for (std::int64_t i = 0; i < count; ++i) {
        deliver(drows + (first + i) * at.row + head * at.dim, dqueries + i * at.dim, at.dim);
      }
      tile_product(compute.kernels, dkeys, at.dim, Operand<A>{dp, stride, true}, q_rows, seen, at.dim, count, true);
      tile_product(compute.kernels, dvalues, at.dim, Operand<A>{p, stride, true}, d_rows, seen, at.dim, count, true);
    }
  }
  for (std::int64_t i = 0; i < s.seq; ++i) {
    deliver(drows + i * at.row + at.k + group * at.dim, dkeys + i * at.dim, at.dim);
    deliver(drows + i * at.row + at.v + group * at.dim, dvalues + i * at.dim, at.dim);
  }
}

}  // namespace

void attention(Compute compute, AttentionShape s, TensorView out, TensorView lse, TensorView qkv) {
  const std::int64_t parts = (s.seq + kQueryTask - 1) / kQueryTask;
  for_dtype(qkv.dtype, [&]<class T>() {
    compute.pool.parallel_for(s.batch * s.heads * parts, [&](std::int64_t task) {
      // The last part of a sequence sees the most keys, so it starts first.
      const std::int64_t part = parts - 1 - task / (s.batch * s.heads), head = task % (s.batch * s.heads);
      attend(compute, s, raw<T>(out), raw<Acc<T>>(lse), raw<const T>(qkv), head / s.heads, head % s.heads, part * kQueryTask,
             std::min(s.seq, (part + 1) * kQueryTask));
    });
  });
}

void attention_grad(Compute compute, AttentionShape s, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                    TensorView qkv) {
  for_dtype(qkv.dtype, [&]<class T>() {
    compute.pool.parallel_for(s.batch * s.kv_heads, [&](std::int64_t task) {
      attend_grad(compute, s, raw<T>(dqkv), raw<const T>(dout), raw<const T>(out), raw<const Acc<T>>(lse), raw<const T>(qkv),
                  task / s.kv_heads, task % s.kv_heads);
    });
  });
}

void attention_decode(Compute compute, AttentionShape s, TensorView out, TensorView q, TensorView k_cache, TensorView v_cache,
                      std::int64_t length) {
  for_dtype(out.dtype, [&]<class T>() {
    using A = Acc<T>;
    const auto& kernels = kernels_for<T>(compute.kernels);
    const std::int64_t dim = s.head_dim, capacity = k_cache.shape[1];
    const T* const query = raw<const T>(q) + (rows_of(q) - 1) * columns_of(q);
    compute.pool.parallel_for(s.heads, [&](std::int64_t head) {
      const std::int64_t cache = head / (s.heads / s.kv_heads) * capacity * dim;
      A* const scores = scratch<A>(Scratch::scores, padded(length));
      A* const sums = scratch<A>(Scratch::tile, dim);
      for (std::int64_t i = 0; i < length; ++i) {
        scores[i] = kernels.dot(query + head * dim, raw<const T>(k_cache) + cache + i * dim, dim);
      }
      const A left = make_scores(compute, s.scores, dim, scores, length);
      softmax_for<A>(compute.kernels).softmax_row(scores, length, padded(length), left);
      std::fill(sums, sums + dim, A{0});
      for (std::int64_t i = 0; i < length; ++i) kernels.axpy(sums, scores[i], raw<const T>(v_cache) + cache + i * dim, dim);
      convert_kernel(compute.kernels, out.dtype, accumulator_of(out.dtype), false)(raw<T>(out) + head * dim, sums, dim);
    });
  });
}

}  // namespace terrace::cpu
