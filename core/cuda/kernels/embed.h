// Rows of a table by token, one block per row; and the conversion of ids of a whole vocabulary to rows of a part of the table.
#pragma once

#include <limits>

#include <terrace/core/cuda/kernels/fault.h>
#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

inline constexpr std::int32_t kElsewhere = -1;  // the token is not in this part of the table

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
    const bool here = token >= 0 && token < a.vocabulary, wrong = !here && token != kElsewhere;
    if (wrong && lane.thread() == 0) report_fault(a.fault, n, token);
    const T* const row = a.table + (here ? token : 0) * a.columns;
    const T* const position = a.positions + (a.first_position + n % a.seq) * a.columns;
    for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
      A v[W] = {}, p[W];
      if (here) load(v, row + i, left, a.whole);
      if (a.positions) {
        load(p, position + i, left, a.whole);
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) v[k] = here ? v[k] + p[k] : p[k];
      }
      if (wrong) {
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) v[k] = std::numeric_limits<A>::quiet_NaN();
      }
      store(a.y + n * a.columns + i, v, left, a.whole);
    });
  }
};

struct IdsInPartArgs {
  std::int32_t* out;
  const std::int32_t* ids;  // may be out
  std::int64_t elements, first, count;
};
struct IdsInPart {
  static constexpr int kThreads = 256, kVectors = 4;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const IdsInPartArgs& a) const {
    for_block_vectors<1, kVectors>(lane, a.elements, [&](std::int64_t i, std::int64_t) {
      const std::int64_t at = a.ids[i] - a.first;
      a.out[i] = at >= 0 && at < a.count ? static_cast<std::int32_t>(at) : kElsewhere;
    });
  }
};

}  // namespace terrace::cuda
