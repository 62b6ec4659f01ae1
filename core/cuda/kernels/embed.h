// Rows of a table by token, a block a row.
#pragma once

#include <limits>

#include <terrace/core/cuda/kernels/fault.h>
#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

template <class T>
struct EmbedArgs {
  T* y;
  const std::int32_t* tokens;
  const T *table, *positions;  // positions may be null
  FaultWord* fault;
  std::int64_t columns, vocabulary, seq, first_position;
  bool whole;
};
template <class T>
struct EmbedRows {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const EmbedArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kWidth<T>;
    const std::int64_t n = lane.block_x();
    const std::int32_t token = a.tokens[n];
    const bool known = token >= 0 && token < a.vocabulary;
    if (!known && lane.thread() == 0) report_fault(a.fault, n, token);
    const T* const row = a.table + (known ? token : 0) * a.columns;
    const T* const position = a.positions + (a.first_position + n % a.seq) * a.columns;
    for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
      A v[W], p[W];
      load(v, row + i, left, a.whole);
      if (a.positions) {
        load(p, position + i, left, a.whole);
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) v[k] += p[k];
      }
      if (!known) {
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) v[k] = std::numeric_limits<A>::quiet_NaN();
      }
      store(a.y + n * a.columns + i, v, left, a.whole);
    });
  }
};

}  // namespace terrace::cuda
