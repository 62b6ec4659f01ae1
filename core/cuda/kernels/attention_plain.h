// Causal attention in plain arithmetic, for every dtype and head dim that the kernels of tensor cores do not support. A warp
// computes one row: its threads are spread over 32 keys (or queries) for the scores, and over the head's columns for the sums.
//
// Shared memory: each warp keeps kRows rows of the head dim, and 2 · 32 weights (bytes_for()).
#pragma once

#include <terrace/core/cuda/kernels/attention_args.h>
#include <terrace/core/cuda/kernels/block_sums.h>

namespace terrace::cuda {

template <class X, class Y>
TERRACE_KERNEL Acc<Y> dot(const X* x, const Y* y, int dim) {
  Acc<Y> sum = 0;
  for (int d = 0; d < dim; ++d) sum += widen(x[d]) * widen(y[d]);
  return sum;
}

inline constexpr int kPlainWarps = 8;

// A warp's own rows and weights in shared memory.
template <class A, int kRows>
struct WarpRows {
  static constexpr std::size_t bytes_for(int dim) {
    return (static_cast<std::size_t>(dim) * kRows + 2 * kWarp) * sizeof(A) * kPlainWarps;
  }
  template <class Lane>
  TERRACE_KERNEL WarpRows(Lane& lane, int columns, int warp)
      : dim(columns), base(shared_as<A>(lane) + warp * (columns * kRows + 2 * kWarp)) {}
  TERRACE_KERNEL A* weights(int i) const { return base + i * kWarp; }
  TERRACE_KERNEL A* row(int i) const { return base + 2 * kWarp + i * dim; }

  template <class T, class Lane>
  TERRACE_KERNEL void read(Lane& lane, int i, const T* from) const {
    for (int d = lane.warp_lane(); d < dim; d += kWarp) row(i)[d] = widen(from[d]);
  }
  template <class Lane>
  TERRACE_KERNEL void clear(Lane& lane, int i) const {
    for (int d = lane.warp_lane(); d < dim; d += kWarp) row(i)[d] = 0;
  }
  template <class T, class Lane>
  TERRACE_KERNEL void write(Lane& lane, int i, T* to, A factor) const {
    for (int d = lane.warp_lane(); d < dim; d += kWarp) to[d] = narrow<T>(row(i)[d] * factor);
  }
  // row i = row i · keep + Σ weights(w)[j] · rows[j], j ascending.
  template <class T, class Lane>
  TERRACE_KERNEL void add(Lane& lane, int i, A keep, int w, const T* rows, std::int64_t stride, int count) const {
    for (int d = lane.warp_lane(); d < dim; d += kWarp) {
      A sum = row(i)[d] * keep;
      for (int j = 0; j < count; ++j) sum += weights(w)[j] * widen(rows[j * stride + d]);
      row(i)[d] = sum;
    }
  }

  int dim;
  A* base;
};

template <class A>
struct Softmax {
  A maximum = -static_cast<A>(INFINITY), sum = 0;
};

// Row 0 of `rows` is the query; row 1 becomes the sum of the values, weighted by exp(score − maximum). The keys are first,
// first + step … below end, 32 at a time.
template <class T, class Lane>
TERRACE_KERNEL Softmax<Acc<T>> attend(Lane& lane, const WarpRows<Acc<T>, 2>& rows, const T* keys, const T* values,
                                      std::int64_t stride, int first, int step, int end, const Scores<Acc<T>>& scores) {
  using A = Acc<T>;
  Softmax<A> s;
  for (; first < end; first += step) {
    const int key = first + lane.warp_lane();
    const A score = key < end ? scores.of(dot(rows.row(0), keys + key * stride, rows.dim)) : -static_cast<A>(INFINITY);
    const A highest = warp_max(lane, score), maximum = highest > s.maximum ? highest : s.maximum;
    const A weight = exp_of(score - maximum), keep = exp_of(s.maximum - maximum);
    s.sum = s.sum * keep + warp_sum(lane, weight);
    s.maximum = maximum;
    rows.weights(0)[lane.warp_lane()] = weight;
    lane.sync_warp();
    rows.add(lane, 1, keep, 0, values + first * stride, stride, end - first < kWarp ? end - first : kWarp);
    lane.sync_warp();
  }
  return s;
}

// Grid: x rows of queries, y heads, z batch.
template <class T>
struct PlainAttention {
  using A = Acc<T>;
  static constexpr int kThreads = kPlainWarps * kWarp;
  using Rows = WarpRows<A, 2>;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<T>& args) const {
    const int query = lane.block_x() * kPlainWarps + lane.warp(), head = lane.block_y(), batch = lane.block_z();
    if (query >= args.seq) return;
    const int group = args.group_of(head);
    const Rows rows(lane, args.head_dim, lane.warp());
    rows.read(lane, 0, args.qkv + args.q_at(batch, query, head));
    rows.clear(lane, 1);
    lane.sync_warp();
    const auto s = attend(lane, rows, args.qkv + args.k_at(batch, 0, group), args.qkv + args.v_at(batch, 0, group),
                          args.qkv_stride(), 0, kWarp, query + 1, args.scores);
    rows.write(lane, 1, args.out + args.out_at(batch, query, head), 1 / s.sum);
    if (lane.warp_lane() == 0) args.lse[args.lse_at(batch, query, head)] = s.maximum + log_of(s.sum);
  }
};

// dq. Grid as for the forward. Rows: q, dout, dq.
template <class T>
struct PlainQueryGrad {
  using A = Acc<T>;
  static constexpr int kThreads = kPlainWarps * kWarp;
  using Rows = WarpRows<A, 3>;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<T>& args) const {
    const int query = lane.block_x() * kPlainWarps + lane.warp(), head = lane.block_y(), batch = lane.block_z();
    if (query >= args.seq) return;
    const int group = args.group_of(head);
    const Rows rows(lane, args.head_dim, lane.warp());
    rows.read(lane, 0, args.qkv + args.q_at(batch, query, head));
    rows.read(lane, 1, args.dout + args.out_at(batch, query, head));
    rows.clear(lane, 2);
    lane.sync_warp();
    const A lse = args.lse[args.lse_at(batch, query, head)];
    const A inner = dot(rows.row(1), args.out + args.out_at(batch, query, head), args.head_dim);
    for (int first = 0; first <= query; first += kWarp) {
      const int key = first + lane.warp_lane();
      A weight = 0;
      if (key <= query) {
        const A score = args.scores.of(dot(rows.row(0), args.qkv + args.k_at(batch, key, group), args.head_dim));
        const A dp = dot(rows.row(1), args.qkv + args.v_at(batch, key, group), args.head_dim);
        weight = exp_of(score - lse) * (dp - inner) * args.scores.slope(score);
      }
      rows.weights(0)[lane.warp_lane()] = weight;
      lane.sync_warp();
      rows.add(lane, 2, A{1}, 0, args.qkv + args.k_at(batch, first, group), args.qkv_stride(),
               query + 1 - first < kWarp ? query + 1 - first : kWarp);
      lane.sync_warp();
    }
    rows.write(lane, 2, args.dqkv + args.q_at(batch, query, head), A{1});
  }
};

// dk and dv: query heads of the group, then queries, ascending. Grid: x rows of keys, y groups, z batch. Rows: k, v, dk, dv.
template <class T>
struct PlainKeyGrad {
  using A = Acc<T>;
  static constexpr int kThreads = kPlainWarps * kWarp;
  using Rows = WarpRows<A, 4>;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<T>& args) const {
    const int key = lane.block_x() * kPlainWarps + lane.warp(), group = lane.block_y(), batch = lane.block_z();
    if (key >= args.seq) return;
    const int heads = args.heads / args.kv_heads;
    const Rows rows(lane, args.head_dim, lane.warp());
    rows.read(lane, 0, args.qkv + args.k_at(batch, key, group));
    rows.read(lane, 1, args.qkv + args.v_at(batch, key, group));
    rows.clear(lane, 2);
    rows.clear(lane, 3);
    lane.sync_warp();
    for (int head = group * heads; head < (group + 1) * heads; ++head) {
      for (int first = key; first < args.seq; first += kWarp) {
        const int query = first + lane.warp_lane(), count = args.seq - first < kWarp ? args.seq - first : kWarp;
        const T* const q = args.qkv + args.q_at(batch, first, head);
        const T* const dout = args.dout + args.out_at(batch, first, head);
        A p = 0, ds = 0;
        if (query < args.seq) {
          const T* const own = dout + lane.warp_lane() * args.out_stride();
          const A score = args.scores.of(dot(rows.row(0), q + lane.warp_lane() * args.qkv_stride(), args.head_dim));
          const A inner = dot(own, args.out + args.out_at(batch, query, head), args.head_dim);
          p = exp_of(score - args.lse[args.lse_at(batch, query, head)]);
          ds = p * (dot(rows.row(1), own, args.head_dim) - inner) * args.scores.slope(score);
        }
        rows.weights(0)[lane.warp_lane()] = ds;
        rows.weights(1)[lane.warp_lane()] = p;
        lane.sync_warp();
        rows.add(lane, 2, A{1}, 0, q, args.qkv_stride(), count);
        rows.add(lane, 3, A{1}, 1, dout, args.out_stride(), count);
        lane.sync_warp();
      }
    }
    rows.write(lane, 2, args.dqkv + args.k_at(batch, key, group), A{1});
    rows.write(lane, 3, args.dqkv + args.v_at(batch, key, group), A{1});
  }
};

}  // namespace terrace::cuda
