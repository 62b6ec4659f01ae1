// Softmax cross-entropy with its gradient, a block a row. One sweep keeps a running maximum and the sum scaled to it; the
// second writes the gradient and finds the row in the second-level cache, so that memory sees one read and one write.
#pragma once

#include <limits>

#include <terrace/core/cuda/kernels/block_sums.h>
#include <terrace/core/cuda/kernels/fault.h>
#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

template <class T>
struct CrossEntropyArgs {
  double* loss;
  T* dlogits;  // may be null, may be logits
  const T* logits;
  const std::int32_t* targets;
  FaultWord* fault;
  std::int64_t columns;
  double scale;
  bool whole;
};
template <class T>
struct CrossEntropyRows {
  static constexpr int kThreads = 1024;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const CrossEntropyArgs<T>& a) const {
    using A = Acc<T>;
    // Two loads at a time: one block alone has to keep the memory busy. fp64 has the registers for one.
    constexpr int W = (sizeof(T) == 8 ? 1 : 2) * kWidth<T>;
    A* const room = shared_as<A>(lane);
    const std::int64_t row = lane.block_x();
    const T* const x = a.logits + row * a.columns;
    T* const dx = a.dlogits ? a.dlogits + row * a.columns : nullptr;
    const std::int32_t target = a.targets[row];
    const bool wrong = target < -1 || target >= a.columns;
    if (target < 0 || wrong) {  // the whole block alike
      const A fill = wrong ? std::numeric_limits<A>::quiet_NaN() : A(0);
      if (lane.thread() == 0) {
        a.loss[row] = static_cast<double>(fill);
        if (wrong) report_fault(a.fault, row, target);
      }
      if (dx) {
        for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
          A v[W];
          TERRACE_UNROLL
          for (int k = 0; k < W; ++k) v[k] = fill;
          store(dx + i, v, left, a.whole);
        });
      }
      return;
    }
    const A hit = widen(x[target]);
    // Not −∞: a thread that sees nothing else subtracts it from itself.
    A most = std::numeric_limits<A>::lowest(), sum = 0;
    for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
      A v[W];
      load(v, x + i, left, a.whole);
      A higher = most;
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) higher = k < left && v[k] > higher ? v[k] : higher;
      sum *= softmax_exponential(most - higher);
      most = higher;
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) sum += k < left ? softmax_exponential(v[k] - most) : A(0);
    });
    const A m = block_max(lane, most, room);
    const A total = block_sum(lane, sum * softmax_exponential(most - m), room);
    if (lane.thread() == 0) {
      a.loss[row] = std::log(static_cast<double>(total)) + (static_cast<double>(m) - static_cast<double>(hit));
    }
    if (!dx) return;
    const A scale = static_cast<A>(a.scale), factor = scale / total;
    // The target's entry is made apart, in one rounding: (p − 1) · scale.
    const A at_target = (softmax_exponential(hit - m) / total - A(1)) * scale;
    for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
      A v[W];
      load(v, x + i, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) v[k] = i + k == target ? at_target : softmax_exponential(v[k] - m) * factor;
      store(dx + i, v, left, a.whole);
    });
  }
};

}  // namespace terrace::cuda
