// A block of attention, computed as attention.cpp does for the whole: scores by blocks of query rows. In each row, the scores
// that its query sees are moved to the beginning of the row for the softmax, then back.
#include <cmath>
#include <cstring>
#include <limits>

#include <terrace/core/math/cpu/attention_rows.h>
#include <terrace/core/math/cpu/ops.h>
#include <terrace/core/math/cpu/tile_product.h>

namespace terrace::cpu {
namespace {

// The range of keys that at least one of these queries sees; before() and of() give one query's part of the range.
struct Seen {
  Seen(const AttentionBlock& s, std::int64_t first, std::int64_t count)
      : block(s), low(s.low(first)), high(std::max(low, s.high(first + count - 1))) {}
  [[nodiscard]] std::int64_t count() const { return high - low; }
  [[nodiscard]] std::int64_t before(std::int64_t query) const { return std::max<std::int64_t>(0, block.low(query) - low); }
  [[nodiscard]] std::int64_t of(std::int64_t query) const { return block.high(query) - block.low(query); }
  const AttentionBlock& block;
  std::int64_t low, high;
};

template <class A>
void move_to_begin(A* row, std::int64_t before, std::int64_t count) {
  if (before != 0) std::memmove(row, row + before, static_cast<std::size_t>(count) * sizeof(A));
}
template <class A>
void move_back(A* row, std::int64_t before, std::int64_t count) {
  if (before == 0) return;
  std::memmove(row + before, row, static_cast<std::size_t>(count) * sizeof(A));
  std::fill(row, row + before, A{0});
}

// Indices of elements: the heads of q begin a row of q, those of keys and values end a row of kv.
struct Places {
  Places(const AttentionBlock& s, const TensorView& q, const TensorView& kv)
      : block(s), q_row(columns_of(q)), kv_row(columns_of(kv)), width(s.heads * s.head_dim) {}
  [[nodiscard]] std::int64_t query(std::int64_t batch, std::int64_t i) const {
    return batch * block.queries.every + block.queries.first + i;
  }
  [[nodiscard]] std::int64_t out(std::int64_t batch, std::int64_t i, std::int64_t head) const {
    return query(batch, i) * width + head * block.head_dim;
  }
  [[nodiscard]] std::int64_t q(std::int64_t batch, std::int64_t i, std::int64_t head, std::int64_t row) const {
    return query(batch, i) * row + head * block.head_dim;
  }
  [[nodiscard]] std::int64_t key(std::int64_t batch, std::int64_t j, std::int64_t group, std::int64_t row) const {
    return (batch * block.keys.every + block.keys.first + j + 1) * row - (2 * block.kv_heads - group) * block.head_dim;
  }
  [[nodiscard]] std::int64_t value(std::int64_t batch, std::int64_t j, std::int64_t group, std::int64_t row) const {
    return key(batch, j, group + block.kv_heads, row);
  }
  [[nodiscard]] std::int64_t lse(std::int64_t batch, std::int64_t i, std::int64_t head) const {
    return (batch * block.heads + head) * block.queries.every + block.queries.first + i;
  }
  const AttentionBlock& block;
  const std::int64_t q_row, kv_row, width;
};

// The weights of the result over other keys and of the result over these keys in the merged result. merge() also makes `lse`
// that of both.
template <class A>
struct Shares {
  A old = 0, added = 0;
};
template <class A>
Shares<A> merge(A& lse, A added) {
  const A highest = std::max(lse, added);
  if (highest == -std::numeric_limits<A>::infinity()) return {};
  const A old_sum = std::exp(lse - highest), added_sum = std::exp(added - highest), sum = old_sum + added_sum;
  lse = highest + std::log(sum);
  return {old_sum / sum, added_sum / sum};
}

template <class T>
void attend(Compute compute, const AttentionBlock& s, const TensorView& out, Acc<T>* lse, const TensorView& q,
            const TensorView& kv, std::int64_t batch, std::int64_t head, Accumulate accumulate) {
  using A = Acc<T>;
  const Places at(s, q, kv);
  const std::int64_t group = head / (s.heads / s.kv_heads), dim = s.head_dim;
  const auto* const rows = raw<const T>(kv);
  const Seen all(s, 0, s.queries.count);
  const auto keys = arithmetic_rows(compute, rows + at.key(batch, all.low, group, at.kv_row), all.count(), dim, at.kv_row,
                                    Scratch::operand_b);
  const auto values = arithmetic_rows(compute, rows + at.value(batch, all.low, group, at.kv_row), all.count(), dim, at.kv_row,
                                      Scratch::operand_c);
  A* const scores = scratch<A>(Scratch::scores, kQueryBlock * padded(all.count()));
  A* const sums = scratch<A>(Scratch::tile, (kQueryBlock + 1) * dim);
  A* const old = sums + kQueryBlock * dim;
  const auto widen = convert_kernel(compute.kernels, dtype_of_storage<A>, out.dtype, false),
             narrow = convert_kernel(compute.kernels, out.dtype, dtype_of_storage<A>, false);
  for (std::int64_t first = 0; first < s.queries.count; first += kQueryBlock) {
    const std::int64_t count = std::min(kQueryBlock, s.queries.count - first);
    const Seen seen(s, first, count);
    const auto stride = padded(seen.count()), from = seen.low - all.low;
    if (seen.count() > 0) {
      const auto queries = arithmetic_rows(compute, raw<const T>(q) + at.q(batch, first, head, at.q_row), count, dim, at.q_row,
                                           Scratch::operand_a);
      tile_product(compute.kernels, scores, stride, Operand<A>{queries.data, queries.stride, false},
                   Operand<A>{keys.data + from * keys.stride, keys.stride, true}, count, seen.count(), dim);
    }
    A sums_of_rows[kQueryBlock];
    for (std::int64_t i = 0; i < count; ++i) {
      A* const row = scores + i * stride;
      const auto visible = seen.of(first + i), before = seen.before(first + i);
      sums_of_rows[i] = -std::numeric_limits<A>::infinity();
      if (visible == 0) {
        std::fill(row, row + stride, A{0});
        continue;
      }
      move_to_begin(row, before, visible);
      const A left = make_scores(compute, s.scores, dim, row, visible);
      sums_of_rows[i] = softmax_for<A>(compute.kernels).softmax_row(row, visible, stride, left);
      move_back(row, before, visible);
    }
    if (seen.count() > 0)
      tile_product(compute.kernels, sums, dim, Operand<A>{scores, stride, false},
                   Operand<A>{values.data + from * values.stride, values.stride, false}, count, dim, seen.count());
    else
      std::fill(sums, sums + count * dim, A{0});
    for (std::int64_t i = 0; i < count; ++i) {
      auto* const to = out.data + static_cast<std::size_t>(at.out(batch, first + i, head)) * size_of(out.dtype);
      A& of_row = lse[at.lse(batch, first + i, head)];
      if (accumulate == Accumulate::yes) {
        const auto shares = merge(of_row, sums_of_rows[i]);
        widen(old, to, dim);
        for (std::int64_t d = 0; d < dim; ++d) sums[i * dim + d] = old[d] * shares.old + sums[i * dim + d] * shares.added;
      } else {
        of_row = sums_of_rows[i];
      }
      narrow(to, sums + i * dim, dim);
    }
  }
}

// One key-value head and its group of query heads: dk and dv are summed over query heads, then over query blocks, ascending.
template <class T>
void attend_grad(Compute compute, const AttentionBlock& s, const TensorView& dq, const TensorView& dkv, const TensorView& dout,
                 const TensorView& out, const Acc<T>* lse, const TensorView& q, const TensorView& kv, std::int64_t batch,
                 std::int64_t group, Accumulate to_dq, Accumulate to_dkv) {
  using A = Acc<T>;
  const Places at(s, q, kv);
  const std::int64_t heads_a_group = s.heads / s.kv_heads, dim = s.head_dim, count_of_keys = s.keys.count;
  const auto* const rows = raw<const T>(kv);
  const auto keys =
      arithmetic_rows(compute, rows + at.key(batch, 0, group, at.kv_row), count_of_keys, dim, at.kv_row, Scratch::operand_b);
  const auto values =
      arithmetic_rows(compute, rows + at.value(batch, 0, group, at.kv_row), count_of_keys, dim, at.kv_row, Scratch::operand_c);
  A* const dkeys = scratch<A>(Scratch::gradients, 2 * count_of_keys * dim);
  A* const dvalues = dkeys + count_of_keys * dim;
  std::fill(dkeys, dkeys + 2 * count_of_keys * dim, A{0});
  A* const p = scratch<A>(Scratch::scores, kQueryBlock * padded(count_of_keys));
  A* const dp = scratch<A>(Scratch::probabilities, kQueryBlock * padded(count_of_keys));
  A* const dqueries = scratch<A>(Scratch::tile, kQueryBlock * dim);
  const auto deliver = [&](const TensorView& to, std::int64_t element, const A* from, Accumulate how) {
    convert_kernel(compute.kernels, to.dtype, dtype_of_storage<A>, how == Accumulate::yes)(
        to.data + static_cast<std::size_t>(element) * size_of(to.dtype), from, dim);
  };
  for (std::int64_t head = group * heads_a_group; head < (group + 1) * heads_a_group; ++head) {
    for (std::int64_t first = 0; first < s.queries.count; first += kQueryBlock) {
      const std::int64_t count = std::min(kQueryBlock, s.queries.count - first);
      const Seen seen(s, first, count);
      std::fill(dqueries, dqueries + count * dim, A{0});
      if (seen.count() > 0) {
        const auto stride = padded(seen.count());
        const T* const out_rows = raw<const T>(out) + at.out(batch, first, head);
        const T* const dout_rows = raw<const T>(dout) + at.out(batch, first, head);
        const auto q_of = arithmetic_rows(compute, raw<const T>(q) + at.q(batch, first, head, at.q_row), count, dim, at.q_row,
                                          Scratch::operand_a);
        const auto d_of = arithmetic_rows(compute, dout_rows, count, dim, at.width, Scratch::operand_d);
        const Operand<A> q_rows{q_of.data, q_of.stride, false}, d_rows{d_of.data, d_of.stride, false};
        const A* const k_of = keys.data + seen.low * keys.stride;
        tile_product(compute.kernels, p, stride, q_rows, Operand<A>{k_of, keys.stride, true}, count, seen.count(), dim);
        tile_product(compute.kernels, dp, stride, d_rows,
                     Operand<A>{values.data + seen.low * values.stride, values.stride, true}, count, seen.count(), dim);
        for (std::int64_t i = 0; i < count; ++i) {
          A *const p_row = p + i * stride, *const dp_row = dp + i * stride;
          const auto visible = seen.of(first + i), before = seen.before(first + i);
          if (visible == 0) {
            std::fill(p_row, p_row + stride, A{0});
            std::fill(dp_row, dp_row + stride, A{0});
            continue;
          }
          const A inner = kernels_for<T>(compute.kernels).dot(dout_rows + i * at.width, out_rows + i * at.width, dim);
          for (auto* const row : {p_row, dp_row}) move_to_begin(row, before, visible);
          softmax_grad(compute, s.scores, dim, p_row, dp_row, visible, stride, lse[at.lse(batch, first + i, head)], inner);
          for (auto* const row : {p_row, dp_row}) move_back(row, before, visible);
        }
        tile_product(compute.kernels, dqueries, dim, Operand<A>{dp, stride, false}, Operand<A>{k_of, keys.stride, false}, count,
                     dim, seen.count());
        tile_product(compute.kernels, dkeys + seen.low * dim, dim, Operand<A>{dp, stride, true}, q_rows, seen.count(), dim,
                     count, true);
        tile_product(compute.kernels, dvalues + seen.low * dim, dim, Operand<A>{p, stride, true}, d_rows, seen.count(), dim,
                     count, true);
      }
      for (std::int64_t i = 0; i < count; ++i)
        deliver(dq, at.q(batch, first + i, head, columns_of(dq)), dqueries + i * dim, to_dq);
    }
  }
  for (std::int64_t j = 0; j < count_of_keys; ++j) {
    deliver(dkv, at.key(batch, j, group, columns_of(dkv)), dkeys + j * dim, to_dkv);
    deliver(dkv, at.value(batch, j, group, columns_of(dkv)), dvalues + j * dim, to_dkv);
  }
}

}  // namespace

void attention_block(Compute compute, const AttentionBlock& s, TensorView out, TensorView lse, TensorView q, TensorView kv,
                     Accumulate accumulate) {
  for_dtype(q.dtype, [&]<class T>() {
    compute.pool.parallel_for(s.batch * s.heads, [&](std::int64_t task) {
      attend<T>(compute, s, out, raw<Acc<T>>(lse), q, kv, task / s.heads, task % s.heads, accumulate);
    });
  });
}

void attention_block_grad(Compute compute, const AttentionBlock& s, TensorView dq, TensorView dkv, TensorView dout,
                          TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq, Accumulate to_dkv) {
  for_dtype(q.dtype, [&]<class T>() {
    compute.pool.parallel_for(s.batch * s.kv_heads, [&](std::int64_t task) {
      attend_grad<T>(compute, s, dq, dkv, dout, out, raw<const Acc<T>>(lse), q, kv, task / s.kv_heads, task % s.kv_heads, to_dq,
                     to_dkv);
    });
  });
}

}  // namespace terrace::cpu
