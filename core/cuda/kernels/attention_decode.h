// Attention of one new position with a cache, for generation: one block per head. Its warps take blocks of 32 keys in turn;
// their sums are then folded in the order of the warps.
#pragma once

#include <terrace/core/cuda/kernels/attention_plain.h>

namespace terrace::cuda {

template <class T>
struct DecodeArgs {
  T* out = nullptr;                                // [H·D]
  const T* q = nullptr;                            // [H·D]
  const T *k_cache = nullptr, *v_cache = nullptr;  // [G, capacity, D]
  std::int64_t capacity = 0;
  int length = 0, heads = 0, kv_heads = 0, head_dim = 0;
  Scores<Acc<T>> scores = {};
};

// Grid: x heads.
template <class T>
struct AttentionDecode {
  using A = Acc<T>;
  static constexpr int kThreads = kPlainWarps * kWarp;
  using Rows = WarpRows<A, 2>;
  static constexpr std::size_t bytes_for(int dim) { return Rows::bytes_for(dim); }

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const DecodeArgs<T>& args) const {
    const int head = lane.block_x(), group = head / (args.heads / args.kv_heads);
    const std::int64_t cache = group * args.capacity * args.head_dim;
    const Rows rows(lane, args.head_dim, lane.warp());
    rows.read(lane, 0, args.q + static_cast<std::int64_t>(head) * args.head_dim);
    rows.clear(lane, 1);
    lane.sync_warp();
    const auto s = attend(lane, rows, args.k_cache + cache, args.v_cache + cache, static_cast<std::int64_t>(args.head_dim),
                          lane.warp() * kWarp, kThreads, args.length, args.scores);
    if (lane.warp_lane() == 0) {
      rows.weights(0)[0] = s.maximum;
      rows.weights(0)[1] = s.sum;
    }
    lane.sync();
    A maximum = -static_cast<A>(INFINITY);
    for (int w = 0; w < kPlainWarps; ++w) {
      const A other = Rows(lane, args.head_dim, w).weights(0)[0];
      maximum = other > maximum ? other : maximum;
    }
    for (int d = lane.thread(); d < args.head_dim; d += kThreads) {
      A total = 0, sum = 0;
      for (int w = 0; w < kPlainWarps; ++w) {
        const Rows part(lane, args.head_dim, w);
        const A weight = exp_of(part.weights(0)[0] - maximum);
        total += part.weights(0)[1] * weight;
        sum += part.row(1)[d] * weight;
      }
      args.out[static_cast<std::int64_t>(head) * args.head_dim + d] = narrow<T>(sum / total);
    }
  }
};

}  // namespace terrace::cuda
