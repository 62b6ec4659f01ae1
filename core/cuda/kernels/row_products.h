// Sums of products over each row, one block per row: a rank's contribution to means of rows, where each rank has some columns.
#pragma once

#include <terrace/core/cuda/kernels/block_sums.h>
#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

template <class T>
struct RowProductsArgs {
  Acc<T>* sums;
  const T *a, *b, *gain;  // gain may be null
  std::int64_t columns;
  Acc<T> factor, offset;
  bool whole;  // all rows are aligned to 16 bytes
};
template <class T>
struct RowProducts {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const RowProductsArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kWidth<T>;
    const std::int64_t row = lane.block_x(), begin = row * a.columns;
    A sum = 0;
    for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
      A u[W], v[W], g[W];
      load(u, a.a + begin + i, left, a.whole);  // zeros after the end, so they add nothing to the sum
      load(v, a.b + begin + i, left, a.whole);
      if (a.gain) load(g, a.gain + i, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) sum += a.gain ? u[k] * (g[k] + a.offset) * v[k] : u[k] * v[k];
    });
    sum = block_sum(lane, sum, shared_as<A>(lane));
    if (lane.thread() == 0) a.sums[row] = a.factor * sum;
  }
};

}  // namespace terrace::cuda
