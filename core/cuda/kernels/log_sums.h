// Log-sum-exps of rows, one block per row, and their merge over the parts of a row. One sweep keeps a running maximum and the
// sum scaled to it.
#pragma once

#include <limits>

#include <terrace/core/cuda/kernels/block_sums.h>
#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

// One block must saturate memory, so each thread issues two loads. fp64 has enough registers for only one.
template <class T>
inline constexpr int kSoftmaxWidth = (sizeof(T) == 8 ? 1 : 2) * kWidth<T>;

template <class A>
struct ExpSum {
  A most;   // the largest element
  A total;  // Σ exp(x − most)
};
// For a row x[columns]; every thread gets the result.
template <class Lane, class T, class A = Acc<T>>
TERRACE_KERNEL ExpSum<A> block_exp_sum(Lane& lane, const T* x, std::int64_t columns, bool whole) {
  constexpr int W = kSoftmaxWidth<T>;
  A* const room = shared_as<A>(lane);
  // Not −∞: a thread that sees nothing else would compute −∞ − −∞.
  A most = std::numeric_limits<A>::lowest(), sum = 0;
  for_vectors<W>(lane, columns, [&](std::int64_t i, std::int64_t left) {
    A v[W];
    load(v, x + i, left, whole);
    A higher = most;
    TERRACE_UNROLL
    for (int k = 0; k < W; ++k) higher = k < left && v[k] > higher ? v[k] : higher;
    sum *= softmax_exponential(most - higher);
    most = higher;
    TERRACE_UNROLL
    for (int k = 0; k < W; ++k) sum += k < left ? softmax_exponential(v[k] - most) : A(0);
  });
  const A m = block_max(lane, most, room);
  return {m, block_sum(lane, sum * softmax_exponential(most - m), room)};
}

template <class T>
struct LogSumExpArgs {
  Acc<T>* lse;
  const T* logits;
  std::int64_t columns, stride;
  bool whole;
};
template <class T>
struct LogSumExpRows {
  static constexpr int kThreads = 1024;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const LogSumExpArgs<T>& a) const {
    const std::int64_t row = lane.block_x();
    const auto sum = block_exp_sum(lane, a.logits + row * a.stride, a.columns, a.whole);
    if (lane.thread() == 0) a.lse[row] = sum.most + static_cast<Acc<T>>(std::log(static_cast<double>(sum.total)));
  }
};

template <class A>
struct MergeLogSumsArgs {
  A* whole;
  const A* parts;  // [count, elements]
  const std::int32_t* targets;
  std::int64_t count, elements;
};
template <class A>
struct MergeLogSums {
  static constexpr int kThreads = 256, kVectors = 1;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const MergeLogSumsArgs<A>& a) const {
    for_block_vectors<1, kVectors>(lane, a.elements, [&](std::int64_t n, std::int64_t) {
      A most = std::numeric_limits<A>::lowest(), total = 0;
      for (std::int64_t k = 0; k < a.count; ++k) {
        const A part = a.parts[k * a.elements + n];
        most = part > most ? part : most;
      }
      for (std::int64_t k = 0; k < a.count; ++k) total += exp_of(a.parts[k * a.elements + n] - most);
      const A merged = most + static_cast<A>(std::log(static_cast<double>(total)));
      a.whole[n] = a.targets[n] < 0 ? std::numeric_limits<A>::infinity() : merged;
    });
  }
};

}  // namespace terrace::cuda
