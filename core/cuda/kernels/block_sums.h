// Sums, maxima and prefix sums over a block's threads, in an order that depends only on the number of threads: a butterfly
// within each warp, then over the warps in ascending order. Every thread gets the result. All threads of the block must call.
//
// Threads: those of a block, together. `room`: shared memory of one value per warp, free again when the call returns.
#pragma once

#include <terrace/core/cuda/lane.h>

namespace terrace::cuda {

template <class Lane, class A>
TERRACE_KERNEL A warp_sum(Lane& lane, A v) {
  TERRACE_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) v += lane.shuffle_xor(v, mask);
  return v;
}
template <class Lane, class A>
TERRACE_KERNEL A warp_max(Lane& lane, A v) {
  TERRACE_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const A other = lane.shuffle_xor(v, mask);
    v = other > v ? other : v;
  }
  return v;
}

template <class Lane, class A>
TERRACE_KERNEL A block_sum(Lane& lane, A v, A* room) {
  v = warp_sum(lane, v);
  if (lane.warp_lane() == 0) room[lane.warp()] = v;
  lane.sync();
  A total = room[0];
  for (int w = 1; w < lane.threads() / kWarp; ++w) total += room[w];
  lane.sync();
  return total;
}
template <class Lane, class A>
TERRACE_KERNEL A block_max(Lane& lane, A v, A* room) {
  v = warp_max(lane, v);
  if (lane.warp_lane() == 0) room[lane.warp()] = v;
  lane.sync();
  A best = room[0];
  for (int w = 1; w < lane.threads() / kWarp; ++w) best = room[w] > best ? room[w] : best;
  lane.sync();
  return best;
}

struct Prefix {
  int before = 0;  // the sum of the threads before this one
  int total = 0;
};
template <class Lane>
TERRACE_KERNEL Prefix block_prefix(Lane& lane, int v, int* room) {
  int sum = v;  // of this warp's threads up to and including this one
  TERRACE_UNROLL
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = lane.shuffle(sum, lane.warp_lane() >= distance ? lane.warp_lane() - distance : 0);
    if (lane.warp_lane() >= distance) sum += other;
  }
  if (lane.warp_lane() == kWarp - 1) room[lane.warp()] = sum;
  lane.sync();
  Prefix p{sum - v, 0};
  for (int w = 0; w < lane.threads() / kWarp; ++w) {
    if (w < lane.warp()) p.before += room[w];
    p.total += room[w];
  }
  lane.sync();
  return p;
}

}  // namespace terrace::cuda
