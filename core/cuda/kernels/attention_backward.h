// Causal flash attention, backward, bf16 on tensor cores, without atomics: three kernels, one after another. Each thread writes
// only its own results, in a fixed order.
//
//   AttentionInner      Δ = rowsum(dout · out), stored in the first four bytes of the row's dq, so that no scratch is needed
//   AttentionKeyGrad    dk, dv of a tile of keys: loops over the query heads of its group, then over tiles of queries
//   AttentionQueryGrad  dq of a tile of queries: reads its Δ, loops over tiles of keys
//
// Both loops recompute the probabilities from the log-sum-exp, 16 positions at a time: p = exp(scale · q·k − lse), ds = p ·
// (dout·v − Δ). So two of seven products are computed twice; in return, no sum uses atomics or goes through memory.
#pragma once

#include <terrace/core/cuda/kernels/attention_key_grad.h>
#include <terrace/core/cuda/kernels/attention_plain.h>
#include <terrace/core/cuda/kernels/attention_query_grad.h>

namespace terrace::cuda {

// One warp per row. Grid: x rows, y heads, z batch.
struct AttentionInner {
  static constexpr int kWarps = 8, kThreads = kWarps * kWarp;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AttentionArgs<bf16>& args) const {
    const int position = lane.block_x() * kWarps + lane.warp(), head = lane.block_y(), batch = lane.block_z();
    if (position >= args.seq) return;
    const std::int64_t row = args.out_at(batch, position, head);
    float sum = 0;
    for (int d = lane.warp_lane(); d < args.head_dim; d += kWarp) sum += widen(args.dout[row + d]) * widen(args.out[row + d]);
    sum = warp_sum(lane, sum);
    if (lane.warp_lane() == 0) *inner_place(args, batch, position, head) = sum;
  }
};

}  // namespace terrace::cuda
