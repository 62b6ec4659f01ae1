// Sums over rows, in two stages with a fixed order: bias_grad and norm_weight_grad.
//
// The rows are divided into parts, depending only on the shape. One block sums one part of a group of columns: warp w adds the
// part's rows w, w + 8, … in ascending order, then the warps are added in ascending order. The second kernel adds the parts in
// ascending order and delivers the result.
#pragma once

#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

inline constexpr int kColumnWarps = 8;
// Columns per block.
template <class T>
inline constexpr int kColumnGroup = kWarp* kWidth<T>;

template <class A>
struct RowParts {
  A* sums;  // [outputs][parts][columns]
  std::int64_t rows, columns, rows_a_part;
  bool whole;
};

// f(row, column, left, total) adds one row's vector of columns to total[outputs][W].
template <class T, int outputs, class Lane, class F>
TERRACE_KERNEL void sum_part(Lane& lane, const RowParts<Acc<T>>& a, F&& f) {
  using A = Acc<T>;
  constexpr int W = kWidth<T>, group = kColumnGroup<T>;
  const std::int64_t first_column = static_cast<std::int64_t>(lane.block_x()) * group;
  const std::int64_t column = first_column + lane.warp_lane() * W;
  const std::int64_t part = lane.block_y(), begin = part * a.rows_a_part;
  const std::int64_t end = begin + a.rows_a_part < a.rows ? begin + a.rows_a_part : a.rows;
  A total[outputs][W] = {};
  if (column < a.columns) {
    for (std::int64_t row = begin + lane.warp(); row < end; row += kColumnWarps) f(row, column, a.columns - column, total);
  }
  A* const warps = shared_as<A>(lane);  // [outputs][warps][group]
  TERRACE_UNROLL
  for (int o = 0; o < outputs; ++o) {
    TERRACE_UNROLL
    for (int k = 0; k < W; ++k) warps[(o * kColumnWarps + lane.warp()) * group + lane.warp_lane() * W + k] = total[o][k];
  }
  lane.sync();
  for (int j = lane.thread(); j < group && first_column + j < a.columns; j += lane.threads()) {
    TERRACE_UNROLL
    for (int o = 0; o < outputs; ++o) {
      A sum = warps[o * kColumnWarps * group + j];
      TERRACE_UNROLL
      for (int w = 1; w < kColumnWarps; ++w) sum += warps[(o * kColumnWarps + w) * group + j];
      a.sums[(o * lane.blocks_y() + part) * a.columns + first_column + j] = sum;
    }
  }
}

template <class T>
struct BiasGradArgs {
  RowParts<Acc<T>> parts;
  const T* dy;
};
template <class T>
struct BiasGradParts {
  static constexpr int kThreads = kColumnWarps * kWarp, kOutputs = 1;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const BiasGradArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kWidth<T>;
    sum_part<T, kOutputs>(lane, a.parts, [&](std::int64_t row, std::int64_t column, std::int64_t left, A(&total)[kOutputs][W]) {
      A d[W];
      load(d, a.dy + row * a.parts.columns + column, left, a.parts.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) total[0][k] += d[k];
    });
  }
};

template <class T>
struct NormWeightGradArgs {
  RowParts<Acc<T>> parts;
  const T *dy, *x;
  const Acc<T>*mean, *rstd;
};
// Outputs: dgain = Σ dy · n, dbias = Σ dy, where n is the normalised x, or x itself if no rstd is given.
template <class T>
struct NormWeightGradParts {
  static constexpr int kThreads = kColumnWarps * kWarp, kOutputs = 2;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const NormWeightGradArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kWidth<T>;
    sum_part<T, kOutputs>(lane, a.parts, [&](std::int64_t row, std::int64_t column, std::int64_t left, A(&total)[kOutputs][W]) {
      A d[W], v[W];
      load(d, a.dy + row * a.parts.columns + column, left, a.parts.whole);
      load(v, a.x + row * a.parts.columns + column, left, a.parts.whole);
      const A m = a.mean ? a.mean[row] : A(0), r = a.rstd ? a.rstd[row] : A(1);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) {
        total[0][k] += d[k] * ((v[k] - m) * r);
        total[1][k] += d[k];
      }
    });
  }
};

template <class Out>
struct FoldPartsArgs {
  Out* out;
  const Acc<Out>* sums;  // [parts][columns]
  std::int64_t columns, parts;
  bool accumulate;
};
template <class Out>
struct FoldParts {
  static constexpr int kThreads = 128;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const FoldPartsArgs<Out>& a) const {
    using A = Acc<Out>;
    const std::int64_t column = static_cast<std::int64_t>(lane.block_x()) * lane.threads() + lane.thread();
    if (column >= a.columns) return;
    A total = 0;
    for (std::int64_t p = 0; p < a.parts; ++p) total += a.sums[p * a.columns + column];
    a.out[column] = narrow<Out>(a.accumulate ? widen(a.out[column]) + total : total);
  }
};

}  // namespace terrace::cuda
