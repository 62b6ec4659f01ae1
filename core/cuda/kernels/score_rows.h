// Softmaxes of rows whose scores lie in parts (core/math/math.h), one warp per row. A lane sums its own keys in ascending
// order; then the lanes are summed.
#pragma once

#include <cmath>

#include <terrace/core/cuda/arithmetic.h>
#include <terrace/core/cuda/kernels/block_sums.h>
#include <terrace/core/cuda/kernels/functions.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda {

inline constexpr int kScoreWarps = 4;  // rows per block

template <class T>
struct ScoreRowsArgs {
  ScoreRows shape;
  T* scores;               // in the gradient: the gradient
  const T* probabilities;  // only in the gradient
  Acc<T> scale;
};

// Grid: x rows of queries, y matrices.
template <class T>
struct SoftmaxRows {
  using A = Acc<T>;
  static constexpr int kThreads = kScoreWarps * kWarp;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const ScoreRowsArgs<T>& a) const {
    const auto& s = a.shape;
    const std::int64_t query = static_cast<std::int64_t>(lane.block_x()) * kScoreWarps + lane.warp();
    const std::int64_t matrix = s.first_matrix + lane.block_y();
    if (query >= s.count) return;
    const std::int64_t low = s.low(query), high = s.high(query);
    A most = -static_cast<A>(INFINITY);
    for (auto key = low + lane.warp_lane(); key < high; key += kWarp) {
      const A score = widen(a.scores[s.place(matrix, query, key)]) * a.scale;
      most = score > most ? score : most;
    }
    most = warp_max(lane, most);
    A sum = 0;
    for (auto key = low + lane.warp_lane(); key < high; key += kWarp)
      sum += exp_of(widen(a.scores[s.place(matrix, query, key)]) * a.scale - most);
    sum = warp_sum(lane, sum);
    for (std::int64_t key = lane.warp_lane(); key < s.parts * s.keys; key += kWarp) {
      T& score = a.scores[s.place(matrix, query, key)];
      score = narrow<T>(key >= low && key < high ? exp_of(widen(score) * a.scale - most) / sum : A(0));
    }
  }
};

template <class T>
struct SoftmaxRowsGrad {
  using A = Acc<T>;
  static constexpr int kThreads = kScoreWarps * kWarp;

  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const ScoreRowsArgs<T>& a) const {
    const auto& s = a.shape;
    const std::int64_t query = static_cast<std::int64_t>(lane.block_x()) * kScoreWarps + lane.warp();
    const std::int64_t matrix = s.first_matrix + lane.block_y();
    if (query >= s.count) return;
    const std::int64_t low = s.low(query), high = s.high(query);
    A inner = 0;
    for (auto key = low + lane.warp_lane(); key < high; key += kWarp) {
      const auto place = s.place(matrix, query, key);
      inner += widen(a.probabilities[place]) * widen(a.scores[place]);
    }
    inner = warp_sum(lane, inner);
    for (std::int64_t key = lane.warp_lane(); key < s.parts * s.keys; key += kWarp) {
      const auto place = s.place(matrix, query, key);
      const bool seen = key >= low && key < high;
      const A gradient = seen ? widen(a.probabilities[place]) * (widen(a.scores[place]) - inner) * a.scale : A(0);
      a.scores[place] = narrow<T>(gradient);
    }
  }
};

}  // namespace terrace::cuda
