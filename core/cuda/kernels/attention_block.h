// A block of attention (core/math/math.h), in plain arithmetic for every dtype and head dim: one warp computes one row, as in
// attention_plain.h. Only one warp writes a gradient. Sums run over ascending keys, or over heads and then queries.
#pragma once

#include <terrace/core/cuda/kernels/attention_plain.h>
#include <terrace/core/cuda/with_type.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda {

// O: the dtype of `out` in the forward, and of the gradient in the backward.
template <class T, class O>
struct AttentionBlockArgs {
  O* to = nullptr;  // out, dq or dkv
  Acc<T>* lse = nullptr;
  const T *q = nullptr, *kv = nullptr;
  const T *dout = nullptr, *out = nullptr;  // only in the backward
  std::int64_t q_row = 0, kv_row = 0, to_row = 0;
  int heads = 0, kv_heads = 0, head_dim = 0;
  int queries = 0, first_query = 0, every_query = 0, keys = 0, first_key = 0, every_key = 0;
  int offset = 0, window = 0;
  bool accumulate = false;
  Scores<Acc<T>> scores = {};

  TERRACE_HD int high(int query) const {
    const int end = query + offset + 1;
    return end < 0 ? 0 : end < keys ? end : keys;
  }
  TERRACE_HD int low(int query) const {
    const int first = window == 0 ? 0 : query + offset - window + 1;
    return first < 0 ? 0 : first < high(query) ? first : high(query);
  }
  // The queries that see `key`: [first, end).
  TERRACE_HD int first_of(int key) const { return key - offset < 0 ? 0 : key - offset < queries ? key - offset : queries; }
  TERRACE_HD int end_of(int key) const {
    const int end = window == 0 ? queries : key - offset + window;
    return end < first_of(key) ? first_of(key) : end < queries ? end : queries;
  }
  TERRACE_HD std::int64_t query_row(int batch, int query) const {
    return static_cast<std::int64_t>(batch) * every_query + first_query + query;
  }
  TERRACE_HD std::int64_t q_at(int batch, int query, int head, std::int64_t row) const {
    return query_row(batch, query) * row + static_cast<std::int64_t>(head) * head_dim;
  }
  TERRACE_HD std::int64_t out_row() const { return static_cast<std::int64_t>(heads) * head_dim; }
  TERRACE_HD std::int64_t k_at(int batch, int key, int group, std::int64_t row) const {
    return (static_cast<std::int64_t>(batch) * every_key + first_key + key + 1) * row -
           static_cast<std::int64_t>(2 * kv_heads - group) * head_dim;
  }
  TERRACE_HD std::int64_t v_at(int batch, int key, int group, std::int64_t row) const {
    return k_at(batch, key, group + kv_heads, row);
  }
  TERRACE_HD std::int64_t lse_at(int batch, int query, int head) const {
    return (static_cast<std::int64_t>(batch) * heads + head) * every_query + first_query + query;
  }
};

// Grid: x rows of queries, y heads, z batch.
template <class T, class O>
struct BlockAttention {
  using A = Acc<T>;
  static constexpr int kThreads = kPlainWarps * kWarp;
  using Rows = WarpRows<A, 2>;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionBlockArgs<T, O>& args) const {
    const int query = lane.block_x() * kPlainWarps + lane.warp(), head = lane.block_y(), batch = lane.block_z();
    if (query >= args.queries) return;
    const int group = head / (args.heads / args.kv_heads), low = args.low(query), high = args.high(query);
    const Rows rows(lane, args.head_dim, lane.warp());
    rows.read(lane, 0, args.q + args.q_at(batch, query, head, args.q_row));
    rows.clear(lane, 1);
    lane.sync_warp();
    const auto s = attend(lane, rows, args.kv + args.k_at(batch, 0, group, args.kv_row),
                          args.kv + args.v_at(batch, 0, group, args.kv_row), args.kv_row, low, kWarp, high, args.scores);
    const A none = -static_cast<A>(INFINITY);
    const std::int64_t place = args.lse_at(batch, query, head);
    const A before = args.accumulate ? args.lse[place] : none, these = low < high ? s.maximum + log_of(s.sum) : none;
    const A highest = before > these ? before : these;
    A old = 0, added = 0, whole = none;
    if (highest > none) {
      const A old_sum = exp_of(before - highest), added_sum = exp_of(these - highest), sum = old_sum + added_sum;
      old = old_sum / sum;
      added = low < high ? added_sum / sum / s.sum : A{0};
      whole = highest + log_of(sum);
    }
    O* const to = args.to + args.q_at(batch, query, head, args.out_row());
    for (int d = lane.warp_lane(); d < args.head_dim; d += kWarp) {
      const A kept = args.accumulate ? widen(to[d]) * old : A{0};
      to[d] = narrow<O>(kept + rows.row(1)[d] * added);
    }
    lane.sync_warp();  // all threads have read the old sum
    if (lane.warp_lane() == 0) args.lse[place] = whole;
  }
};

template <class T, class O>
TERRACE_KERNEL void deliver(O& to, Acc<T> value, bool accumulate) {
  to = narrow<O>(accumulate ? widen(to) + value : value);
}

// dq. Grid as for the forward. Rows: q, dout, dq.
template <class T, class O>
struct BlockQueryGrad {
  using A = Acc<T>;
  static constexpr int kThreads = kPlainWarps * kWarp;
  using Rows = WarpRows<A, 3>;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionBlockArgs<T, O>& args) const {
    const int query = lane.block_x() * kPlainWarps + lane.warp(), head = lane.block_y(), batch = lane.block_z();
    if (query >= args.queries) return;
    const int group = head / (args.heads / args.kv_heads), high = args.high(query);
    const Rows rows(lane, args.head_dim, lane.warp());
    rows.read(lane, 0, args.q + args.q_at(batch, query, head, args.q_row));
    rows.read(lane, 1, args.dout + args.q_at(batch, query, head, args.out_row()));
    rows.clear(lane, 2);
    lane.sync_warp();
    const A lse = args.lse[args.lse_at(batch, query, head)];
    const A inner = dot(rows.row(1), args.out + args.q_at(batch, query, head, args.out_row()), args.head_dim);
    for (int first = args.low(query); first < high; first += kWarp) {
      const int key = first + lane.warp_lane();
      A weight = 0;
      if (key < high) {
        const A score = args.scores.of(dot(rows.row(0), args.kv + args.k_at(batch, key, group, args.kv_row), args.head_dim));
        const A dp = dot(rows.row(1), args.kv + args.v_at(batch, key, group, args.kv_row), args.head_dim);
        weight = exp_of(score - lse) * (dp - inner) * args.scores.slope(score);
      }
      rows.weights(0)[lane.warp_lane()] = weight;
      lane.sync_warp();
      rows.add(lane, 2, A{1}, 0, args.kv + args.k_at(batch, first, group, args.kv_row), args.kv_row,
               high - first < kWarp ? high - first : kWarp);
      lane.sync_warp();
    }
    O* const to = args.to + args.q_at(batch, query, head, args.to_row);
    for (int d = lane.warp_lane(); d < args.head_dim; d += kWarp) deliver<T>(to[d], rows.row(2)[d], args.accumulate);
  }
};

// dk and dv: query heads of the group, then queries, ascending. Grid: x rows of keys, y groups, z batch. Rows: k, v, dk, dv.
template <class T, class O>
struct BlockKeyGrad {
  using A = Acc<T>;
  static constexpr int kThreads = kPlainWarps * kWarp;
  using Rows = WarpRows<A, 4>;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionBlockArgs<T, O>& args) const {
    const int key = lane.block_x() * kPlainWarps + lane.warp(), group = lane.block_y(), batch = lane.block_z();
    if (key >= args.keys) return;
    const int heads = args.heads / args.kv_heads, end = args.end_of(key);
    const Rows rows(lane, args.head_dim, lane.warp());
    rows.read(lane, 0, args.kv + args.k_at(batch, key, group, args.kv_row));
    rows.read(lane, 1, args.kv + args.v_at(batch, key, group, args.kv_row));
    rows.clear(lane, 2);
    rows.clear(lane, 3);
    lane.sync_warp();
    for (int head = group * heads; head < (group + 1) * heads; ++head) {
      for (int first = args.first_of(key); first < end; first += kWarp) {
        const int query = first + lane.warp_lane(), count = end - first < kWarp ? end - first : kWarp;
        const T* const q = args.q + args.q_at(batch, first, head, args.q_row);
        const T* const dout = args.dout + args.q_at(batch, first, head, args.out_row());
        A p = 0, ds = 0;
        if (query < end) {
          const T* const own = dout + lane.warp_lane() * args.out_row();
          const A score = args.scores.of(dot(rows.row(0), q + lane.warp_lane() * args.q_row, args.head_dim));
          const A inner = dot(own, args.out + args.q_at(batch, query, head, args.out_row()), args.head_dim);
          p = exp_of(score - args.lse[args.lse_at(batch, query, head)]);
          ds = p * (dot(rows.row(1), own, args.head_dim) - inner) * args.scores.slope(score);
        }
        rows.weights(0)[lane.warp_lane()] = ds;
        rows.weights(1)[lane.warp_lane()] = p;
        lane.sync_warp();
        rows.add(lane, 2, A{1}, 0, q, args.q_row, count);
        rows.add(lane, 3, A{1}, 1, dout, args.out_row(), count);
        lane.sync_warp();
      }
    }
    O* const to_key = args.to + args.k_at(batch, key, group, args.to_row);
    O* const to_value = args.to + args.v_at(batch, key, group, args.to_row);
    for (int d = lane.warp_lane(); d < args.head_dim; d += kWarp) {
      deliver<T>(to_key[d], rows.row(2)[d], args.accumulate);
      deliver<T>(to_value[d], rows.row(3)[d], args.accumulate);
    }
  }
};

template <class T, class O>
AttentionBlockArgs<T, O> block_args(const AttentionBlock& s, TensorView to, TensorView lse, TensorView q, TensorView kv,
                                    Accumulate accumulate) {
  const auto whole = [](std::int64_t n) { return static_cast<int>(n); };
  return {.to = to.as<O>(),
          .lse = lse.as<Acc<T>>(),
          .q = q.as<T>(),
          .kv = kv.as<T>(),
          .q_row = columns_of(q),
          .kv_row = columns_of(kv),
          .to_row = columns_of(to),
          .heads = whole(s.heads),
          .kv_heads = whole(s.kv_heads),
          .head_dim = whole(s.head_dim),
          .queries = whole(s.queries.count),
          .first_query = whole(s.queries.first),
          .every_query = whole(s.queries.every),
          .keys = whole(s.keys.count),
          .first_key = whole(s.keys.first),
          .every_key = whole(s.keys.every),
          .offset = whole(s.offset),
          .window = whole(s.window),
          .accumulate = accumulate == Accumulate::yes,
          .scores = scores_of<Acc<T>>(s.scores, s.head_dim)};
}

// Calls f.template operator()<T, O>() for the dtype of q and that of the result, which is the same or that of sums.
template <class F>
void with_types(DType dtype, DType result, F&& f) {
  with_type(dtype, [&]<class T>() {
    if (result == dtype)
      f.template operator()<T, T>();
    else
      f.template operator()<T, Acc<T>>();
  });
}

template <class Kernel, class Launcher, class Args>
void launch_block_rows(const Launcher& launcher, std::int64_t rows, std::int64_t heads, std::int64_t batch, const Args& args) {
  launcher.template run<Kernel>({.blocks = {ceil_div(rows, std::int64_t{kPlainWarps}), heads, batch},
                                 .threads = Kernel::kThreads,
                                 .shared_bytes = Kernel::Rows::bytes_for(args.head_dim)},
                                args);
}

template <class Launcher>
void attention_block(const Launcher& launcher, const AttentionBlock& s, TensorView out, TensorView lse, TensorView q,
                     TensorView kv, Accumulate accumulate) {
  with_types(q.dtype, out.dtype, [&]<class T, class O>() {
    launch_block_rows<BlockAttention<T, O>>(launcher, s.queries.count, s.heads, s.batch,
                                            block_args<T, O>(s, out, lse, q, kv, accumulate));
  });
}

template <class Launcher>
void attention_block_grad(const Launcher& launcher, const AttentionBlock& s, TensorView dq, TensorView dkv, TensorView dout,
                          TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq, Accumulate to_dkv) {
  with_types(q.dtype, dkv.dtype, [&]<class T, class O>() {
    auto args = block_args<T, O>(s, dkv, lse, q, kv, to_dkv);
    args.dout = dout.as<T>();
    args.out = out.as<T>();
    launch_block_rows<BlockKeyGrad<T, O>>(launcher, s.keys.count, s.kv_heads, s.batch, args);
  });
  with_types(q.dtype, dq.dtype, [&]<class T, class O>() {
    auto args = block_args<T, O>(s, dq, lse, q, kv, to_dq);
    args.dout = dout.as<T>();
    args.out = out.as<T>();
    launch_block_rows<BlockQueryGrad<T, O>>(launcher, s.queries.count, s.heads, s.batch, args);
  });
}

}  // namespace terrace::cuda
