// The gradient of an embedding: each row of the table is the sum of its uses in ascending n, without atomic adds, which would
// have no fixed order. Four kernels:
//
//   CopyIds           copies the tokens to the device, once
//   IndexUses         one block per range of 128 tokens of the vocabulary: counts the uses of lower ranges to find where its
//                     own begin in the index, then lists its own, ascending. Every block reads the tokens twice, from the
//                     second-level cache.
//   EmbedGradRows     one block per eight rows and slice of columns: picks the uses of each row from the list of its range,
//                     sums and delivers.
//   PositionGradRows  the same for positions, whose uses are known: n = position, position + seq, …
#pragma once

#include <terrace/core/cuda/kernels/block_sums.h>
#include <terrace/core/cuda/kernels/embed.h>
#include <terrace/core/cuda/kernels/fault.h>
#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

inline constexpr int kVocabularyRange = 128;
inline constexpr int kRowsABlock = 8;
static_assert(kVocabularyRange % kRowsABlock == 0);

// Copies the ids, which may be in host memory, because every block of the next kernel reads all of them.
struct CopyIdsArgs {
  std::int32_t* to;
  const std::int32_t* from;
  std::int64_t count;
};
struct CopyIds {
  static constexpr int kThreads = 256, kVectors = 4;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const CopyIdsArgs& a) const {
    for_block_vectors<1, kVectors>(lane, a.count, [&](std::int64_t i, std::int64_t) { a.to[i] = a.from[i]; });
  }
};

struct IndexUsesArgs {
  const std::int32_t* tokens;
  std::int32_t* uses;   // [count]: the positions n of this table's tokens, by range, then ascending
  std::int32_t* begin;  // [ranges + 1]: where each range begins in `uses`
  FaultWord* fault;
  std::int64_t count, vocabulary;
};
struct IndexUses {
  static constexpr int kThreads = 256, kTokens = 4;  // kTokens: tokens that a thread takes at a time
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const IndexUsesArgs& a) const {
    int* const room = shared_as<int>(lane);
    const std::int64_t low = static_cast<std::int64_t>(lane.block_x()) * kVocabularyRange;
    const std::int64_t high = low + kVocabularyRange < a.vocabulary ? low + kVocabularyRange : a.vocabulary;
    int lower = 0;
    for (std::int64_t n = lane.thread(); n < a.count; n += lane.threads()) {
      const std::int32_t token = a.tokens[n];
      lower += token >= 0 && token < low ? 1 : 0;
      if (lane.block_x() == 0 && (token < kElsewhere || token >= a.vocabulary)) report_fault(a.fault, n, token);
    }
    std::int64_t at = block_sum(lane, lower, room);
    if (lane.thread() == 0) a.begin[lane.block_x()] = static_cast<std::int32_t>(at);
    const std::int64_t tile = static_cast<std::int64_t>(lane.threads()) * kTokens;
    for (std::int64_t first = 0; first < a.count; first += tile) {
      const std::int64_t mine = first + lane.thread() * kTokens;
      bool used[kTokens];
      int count = 0;
      TERRACE_UNROLL
      for (int k = 0; k < kTokens; ++k) {
        used[k] = mine + k < a.count && a.tokens[mine + k] >= low && a.tokens[mine + k] < high;
        count += used[k] ? 1 : 0;
      }
      const Prefix prefix = block_prefix(lane, count, room);
      std::int64_t to = at + prefix.before;
      TERRACE_UNROLL
      for (int k = 0; k < kTokens; ++k) {
        if (used[k]) a.uses[to++] = static_cast<std::int32_t>(mine + k);
      }
      at += prefix.total;
    }
    if (high == a.vocabulary && lane.thread() == 0) a.begin[lane.block_x() + 1] = static_cast<std::int32_t>(at);
  }
};

template <class T, class Out>
struct EmbedGradArgs {
  Out* dtable;
  const T* dy;
  const std::int32_t *tokens, *uses, *begin;
  std::int64_t columns, vocabulary;
  bool accumulate, whole;
};
template <class T, class Out>
struct EmbedGradRows {
  static constexpr int kThreads = 256, kW = kCommonWidth<T, Out>;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const EmbedGradArgs<T, Out>& a) const {
    using A = Acc<T>;
    int* const room = shared_as<int>(lane);
    std::int32_t* const hits = shared_as<std::int32_t>(lane, kWarp * sizeof(int));  // [threads]
    const std::int64_t first_row = static_cast<std::int64_t>(lane.block_x()) * kRowsABlock;
    const std::int64_t range = first_row / kVocabularyRange;
    const std::int64_t begin = a.begin[range], end = a.begin[range + 1];
    const std::int64_t column = (static_cast<std::int64_t>(lane.block_y()) * lane.threads() + lane.thread()) * kW;
    const std::int64_t left = a.columns - column;
    for (std::int64_t row = first_row; row < first_row + kRowsABlock && row < a.vocabulary; ++row) {
      A sum[kW] = {};
      int uses = 0;
      for (std::int64_t tile = begin; tile < end; tile += lane.threads()) {
        const std::int64_t entry = tile + lane.thread();
        const std::int32_t n = entry < end ? a.uses[entry] : -1;
        const bool hit = n >= 0 && a.tokens[n] == row;
        const Prefix prefix = block_prefix(lane, hit ? 1 : 0, room);
        if (hit) hits[prefix.before] = n;
        lane.sync();
        uses += prefix.total;
        for (int h = 0; h < prefix.total && left > 0; ++h) {
          A d[kW];
          load(d, a.dy + hits[h] * a.columns + column, left, a.whole);
          TERRACE_UNROLL
          for (int k = 0; k < kW; ++k) sum[k] += d[k];
        }  // no thread writes to `hits` before all threads have reached the next prefix sum
      }
      if (left > 0 && (uses > 0 || !a.accumulate)) {
        deliver(a.dtable + row * a.columns + column, sum, left, a.whole, a.accumulate);
      }
    }
  }
};

template <class T, class Out>
struct PositionGradArgs {
  Out* dpositions;
  const T* dy;
  std::int64_t rows, columns, seq;
  bool accumulate, whole;
};
template <class T, class Out>
struct PositionGradRows {
  static constexpr int kThreads = 256, kW = kCommonWidth<T, Out>;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const PositionGradArgs<T, Out>& a) const {
    using A = Acc<T>;
    const std::int64_t position = lane.block_x();
    const std::int64_t column = (static_cast<std::int64_t>(lane.block_y()) * lane.threads() + lane.thread()) * kW;
    const std::int64_t left = a.columns - column;
    if (left <= 0) return;
    const bool used = position < a.seq && position < a.rows;
    A sum[kW] = {};
    for (std::int64_t n = position; used && n < a.rows; n += a.seq) {
      A d[kW];
      load(d, a.dy + n * a.columns + column, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < kW; ++k) sum[k] += d[k];
    }
    if (used || !a.accumulate) deliver(a.dpositions + position * a.columns + column, sum, left, a.whole, a.accumulate);
  }
};

}  // namespace terrace::cuda
