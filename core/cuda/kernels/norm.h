// Layer and RMS normalisation, one block per row, and their input gradient. The row is read from memory once; later sweeps find
// it in the first-level cache.
#pragma once

#include <terrace/core/cuda/kernels/block_sums.h>
#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

template <class T>
struct NormArgs {
  T* y;
  Acc<T>*mean, *rstd;  // mean null: RMSNorm
  const T *x, *gain, *bias;
  const Acc<T>* squares;  // null: the rows are whole
  std::int64_t columns;
  Acc<T> eps, offset;
  bool whole;  // all rows are aligned to 16 bytes
};

// Two passes over the row, in the sum type: the mean, then the mean square of x − mean.
template <class T>
struct NormRows {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const NormArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kWidth<T>;
    A* const room = shared_as<A>(lane);
    const std::int64_t row = lane.block_x();
    const T* const x = a.x + row * a.columns;
    T* const y = a.y + row * a.columns;
    const A count = static_cast<A>(a.columns);
    A m = 0;
    if (a.mean) {
      A sum = 0;
      for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
        A v[W];
        load(v, x + i, left, a.whole);
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) sum += v[k];
      });
      m = block_sum(lane, sum, room) / count;
    }
    A variance = 0;
    if (a.squares) {
      variance = a.squares[row];
    } else {
      A squares = 0;
      for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
        A v[W];
        load(v, x + i, left, a.whole);
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) {
          const A d = k < left ? v[k] - m : A(0);
          squares += d * d;
        }
      });
      variance = block_sum(lane, squares, room) / count;
    }
    const A r = A(1) / std::sqrt(variance + a.eps);
    if (lane.thread() == 0) {
      if (a.mean) a.mean[row] = m;
      a.rstd[row] = r;
    }
    for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
      A v[W], g[W], b[W] = {};
      load(v, x + i, left, a.whole);
      load(g, a.gain + i, left, a.whole);
      if (a.bias) load(b, a.bias + i, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) {
        v[k] = (v[k] - m) * r * (g[k] + a.offset);
        if (a.bias) v[k] += b[k];
      }
      store(y + i, v, left, a.whole);
    });
  }
};

template <class T>
struct NormGradArgs {
  T* dx;
  const T *dy, *x, *gain;
  const Acc<T>*mean, *rstd, *products;  // products null: the rows are whole
  std::int64_t columns;
  Acc<T> offset;
  bool accumulate, whole;
};

// dx = (g − mean(g) − n · mean(g · n)) · rstd, with g = dy · (offset + gain) and n the normalised x; RMSNorm has no mean(g).
template <class T>
struct NormGradRows {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const NormGradArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kWidth<T>;
    A* const room = shared_as<A>(lane);
    const std::int64_t row = lane.block_x(), begin = row * a.columns;
    const A count = static_cast<A>(a.columns), r = a.rstd[row];
    const A m = a.mean ? a.mean[row] : A(0);
    A g_mean = 0, gn_mean = 0;
    if (a.products) {
      gn_mean = a.products[row] * r;
    } else {
      A g_sum = 0, gn_sum = 0;
      for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
        A d[W], v[W], g[W];
        load(d, a.dy + begin + i, left, a.whole);
        load(v, a.x + begin + i, left, a.whole);
        load(g, a.gain + i, left, a.whole);
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) {
          const A product = d[k] * (g[k] + a.offset);  // d is zero after the end, so all sums are unaffected
          g_sum += product;
          gn_sum += product * ((v[k] - m) * r);
        }
      });
      if (a.mean) g_mean = block_sum(lane, g_sum, room) / count;
      gn_mean = block_sum(lane, gn_sum, room) / count;
    }
    for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
      A d[W], v[W], g[W];
      load(d, a.dy + begin + i, left, a.whole);
      load(v, a.x + begin + i, left, a.whole);
      load(g, a.gain + i, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) v[k] = (d[k] * (g[k] + a.offset) - g_mean - (v[k] - m) * r * gn_mean) * r;
      deliver(a.dx + begin + i, v, left, a.whole, a.accumulate);
    });
  }
};

}  // namespace terrace::cuda
