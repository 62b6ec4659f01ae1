// fp64 sums with the same bits as on the CPU (sum and sum_of_squares in core/math/cpu/kernels/elementwise.inl): partial sums of
// 4,096 elements, which sum() folds in ascending order.
//
// A partial sum has 32 accumulators, in the order of the CPU's four vectors of eight. So one warp computes it, with one
// accumulator per lane, and the loads of the lanes are adjacent. The fold must be a chain of additions; one block loads ahead
// of the thread that adds.
#pragma once

#include <terrace/core/cuda/kernels/vectors.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda {

inline constexpr int kSumWarps = 8;

template <class T>
struct SumPartsArgs {
  double* partial;
  const T* x;
  std::int64_t elements;
  std::int64_t first;  // elements of the first part; the others have kSumBlock, the last one the rest
};
template <class T, bool square>
struct SumParts {
  static constexpr int kThreads = kSumWarps * kWarp;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const SumPartsArgs<T>& a) const {
    const std::int64_t part = static_cast<std::int64_t>(lane.block_x()) * kSumWarps + lane.warp();
    const std::int64_t begin = part == 0 ? 0 : a.first + (part - 1) * kSumBlock, most = part == 0 ? a.first : kSumBlock;
    if (begin >= a.elements && part != 0) return;  // the whole warp
    const std::int64_t n = a.elements - begin < most ? a.elements - begin : most;
    const auto at = [&](std::int64_t i) {
      const double v = static_cast<double>(widen(a.x[begin + i]));
      return square ? v * v : v;
    };
    const int t = lane.warp_lane();
    double sum = 0;
    std::int64_t i = 0;
    for (; i + kWarp <= n; i += kWarp) sum += at(i + t);
    // The rest: whole vectors of eight are added to the first eight accumulators, an incomplete one to the next eight.
    for (; i + 8 <= n; i += 8) {
      if (t < 8) sum += at(i + t);
    }
    if (i < n && t >= 8 && t < 16) sum += t - 8 < n - i ? at(i + t - 8) : 0.0;
    sum += lane.shuffle_xor(sum, 8);  // (s0 + s1) + (s2 + s3), then the eight lanes as a tree
    sum += lane.shuffle_xor(sum, 16);
    sum += lane.shuffle_xor(sum, 4);
    sum += lane.shuffle_xor(sum, 2);
    sum += lane.shuffle_xor(sum, 1);
    if (t == 0) a.partial[part] = sum;
  }
};

struct FoldSumsArgs {
  double* out;
  const double* partial;
  std::int64_t count;
  bool accumulate;
};
// A chain of additions; thread 0 has the sum.
struct Fold {
  static constexpr int kThreads = 256, kAhead = 4;  // partial sums a thread loads for the next stretch
  static constexpr std::size_t kSharedBytes = 2 * sizeof(double) * kThreads * kAhead;
  template <class Lane, class T>
  TERRACE_KERNEL static double sum(Lane& lane, const T* partial, std::int64_t count) {
    constexpr std::int64_t stretch = kThreads * kAhead;
    double* const stretches = shared_as<double>(lane);
    const auto fetch = [&](std::int64_t begin) {
      double* const to = stretches + begin / stretch % 2 * stretch;
      TERRACE_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        const std::int64_t i = k * kThreads + lane.thread();
        if (begin + i < count) to[i] = static_cast<double>(partial[begin + i]);
      }
    };
    double total = 0;
    fetch(0);
    for (std::int64_t begin = 0; begin < count; begin += stretch) {
      lane.sync();
      if (begin + stretch < count) fetch(begin + stretch);
      if (lane.thread() == 0) {
        const double* const now = stretches + begin / stretch % 2 * stretch;
        const std::int64_t here = count - begin < stretch ? count - begin : stretch;
        for (std::int64_t i = 0; i < here; ++i) total += now[i];
      }
    }
    return total;
  }
};
struct FoldSums {
  static constexpr int kThreads = Fold::kThreads;
  static constexpr std::size_t kSharedBytes = Fold::kSharedBytes;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const FoldSumsArgs& a) const {
    const double total = Fold::sum(lane, a.partial, a.count);
    if (lane.thread() == 0) a.out[0] = a.accumulate ? a.out[0] + total : total;
  }
};

}  // namespace terrace::cuda
