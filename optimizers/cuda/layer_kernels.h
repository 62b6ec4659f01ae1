// The kernels of optimizers of whole layers, on a Lane (core/cuda/lane.h): sums in the order of docs/internals/optimizers.md,
// and the operations on every element. UpdateTile (update_kernel.h) computes directions and last steps, with the rules here.
//
// Internal to optimizers/.
#pragma once

#include <array>
#include <cstdint>

#include <terrace/core/cuda/kernels/sums.h>
#include <terrace/optimizers/cuda/update_kernel.h>
#include <terrace/optimizers/layerwise/adafactor.h>
#include <terrace/optimizers/layerwise/lamb.h>
#include <terrace/optimizers/layerwise/muon.h>

namespace terrace::cuda {

// Runs body(i) for i < count.
template <class Body>
struct ForEachArgs {
  Body body = {};
  std::int64_t count = 0;
};
template <class Body>
struct ForEach {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const ForEachArgs<Body>& args) const {
    const auto i = static_cast<std::int64_t>(lane.block_x()) * kThreads + lane.thread();
    if (i < args.count) args.body(i);
  }
};

// One block adds the numbers in ascending order and calls body(sum).
template <class T, class Body>
struct FoldIntoArgs {
  const T* numbers = nullptr;
  std::int64_t count = 0;
  Body body = {};
};
template <class T, class Body>
struct FoldInto {
  static constexpr int kThreads = Fold::kThreads;
  static constexpr std::size_t kSharedBytes = Fold::kSharedBytes;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const FoldIntoArgs<T, Body>& args) const {
    const double total = Fold::sum(lane, args.numbers, args.count);
    if (lane.thread() == 0) args.body(total);
  }
};

// Eight adjacent threads make one sum of squares, one thread for each lane of the specification; all threads of a warp must
// call this.
inline constexpr int kSquareLanes = 8;
template <class Lane>
TERRACE_KERNEL double fold_lanes(Lane& lane, double own) {
  const int first = lane.warp_lane() / kSquareLanes * kSquareLanes;
  double sum = 0;
  for (int l = 0; l < kSquareLanes; ++l) sum += lane.shuffle(own, first + l);
  return sum;
}

// Sums of squares over a tensor's blocks of 4,096 elements of the layer's run. Elements in other ranks' chunks count as zero. A
// Source returns element `at` of one of this rank's chunks.
template <class Source>
struct BlockSquaresArgs {
  double* out = nullptr;  // first_block's sum; blocks count from the tensor's first one
  std::int64_t first_block = 0, blocks = 0;
  std::int64_t first = 0, end = 0;  // the tensor's elements in the run
  std::int64_t chunk_elements = 0, ranks = 1, rank = 0;
  Source source = {};
};
template <class Source>
struct BlockSquares {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const BlockSquaresArgs<Source>& args) const {
    const auto thread = static_cast<std::int64_t>(lane.block_x()) * kThreads + lane.thread();
    const auto own = thread / kSquareLanes;
    const auto block = args.first / kSumBlock + args.first_block + own;
    const auto begin = block * kSumBlock < args.first ? args.first : block * kSumBlock;
    const auto stop = (block + 1) * kSumBlock < args.end ? (block + 1) * kSumBlock : args.end;
    double sum = 0;
    std::int64_t at = own < args.blocks ? begin + thread % kSquareLanes : stop;
    while (at < stop) {  // without other ranks a block may lie in several chunks
      const auto chunk = at / args.chunk_elements, chunk_end = (chunk + 1) * args.chunk_elements;
      if (chunk % args.ranks != args.rank) break;
      const auto piece_end = chunk_end < stop ? chunk_end : stop;
      for (; at < piece_end; at += kSquareLanes) {
        const double v = args.source(chunk / args.ranks, at - chunk * args.chunk_elements);
        sum += v * v;
      }
    }
    sum = fold_lanes(lane, sum);
    if (own < args.blocks && thread % kSquareLanes == 0) args.out[own] = sum;
  }
};

// Weights of the chunks from `first_chunk` on, which must contain all requested elements.
inline constexpr int kMaxSourceChunks = 96;
template <class A>
struct WeightSource {
  std::int64_t first_chunk = 0, elements = 0;
  rules::Format parameter_format = {}, master_format = {};
  std::byte *parameter[kMaxSourceChunks] = {}, *master[kMaxSourceChunks] = {};
  TERRACE_KERNEL double operator()(std::int64_t chunk, std::int64_t at) const {
    const auto c = chunk - first_chunk;
    return static_cast<double>(
        read_weight<A>({parameter[c], parameter_format, elements}, {master[c], master_format, elements}, at));
  }
};
// The directions of chunks that are `stride` elements apart.
template <class A>
struct DirectionSource {
  const A* directions = nullptr;
  std::int64_t stride = 0;
  TERRACE_KERNEL double operator()(std::int64_t chunk, std::int64_t at) const {
    return static_cast<double>(directions[chunk * stride + at]);
  }
};

// Sums of the squares of each row, in eight lanes.
template <class A>
struct RowSquaresArgs {
  double* out = nullptr;
  const A* matrix = nullptr;
  std::int64_t rows = 0, columns = 0;
};
template <class A>
struct RowSquares {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const RowSquaresArgs<A>& args) const {
    const auto thread = static_cast<std::int64_t>(lane.block_x()) * kThreads + lane.thread();
    const auto row = thread / kSquareLanes;
    double sum = 0;
    if (row < args.rows) {
      for (auto c = thread % kSquareLanes; c < args.columns; c += kSquareLanes) {
        const auto v = static_cast<double>(args.matrix[row * args.columns + c]);
        sum += v * v;
      }
    }
    sum = fold_lanes(lane, sum);
    if (row < args.rows && thread % kSquareLanes == 0) args.out[row] = sum;
  }
};

// --- Operations on elements ---

template <class A>
struct CopyNumbers {
  A* to;
  const A* from;  // null: zeros
  TERRACE_KERNEL void operator()(std::int64_t i) const { to[i] = from ? from[i] : A{0}; }
};

template <class A>
struct ColumnSquares {
  double* out;
  const A* matrix;
  std::int64_t rows, columns;
  TERRACE_KERNEL void operator()(std::int64_t c) const {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {  // in ascending order
      const auto v = static_cast<double>(matrix[r * columns + c]);
      sum += v * v;
    }
    out[c] = sum;
  }
};

template <class A>
struct MoveMoments {  // moments of rows, then of columns
  A* moment;
  const double* sums;
  std::int64_t rows, columns;
  double towards;
  TERRACE_KERNEL void operator()(std::int64_t i) const {
    moment[i] = rules::AdafactorLayer::moved(moment[i], sums[i] / static_cast<double>(i < rows ? columns : rows), towards);
  }
};
struct KeepMean {
  double* out;
  double count;
  TERRACE_KERNEL void operator()(double sum) const { *out = sum / count; }
};
template <class A>
struct MomentFactors {
  A* factors;
  const A* moment;
  const double* mean;  // of the rows' moments
  std::int64_t rows;
  TERRACE_KERNEL void operator()(std::int64_t i) const {
    factors[i] =
        i < rows ? rules::AdafactorLayer::row_factor(moment[i], *mean) : rules::AdafactorLayer::column_factor(moment[i]);
  }
};
template <class A>
struct DivideMatrix {
  A* matrix;
  const A* factors;
  std::int64_t rows, columns;
  TERRACE_KERNEL void operator()(std::int64_t i) const {
    matrix[i] = (matrix[i] * factors[i / columns]) * factors[rows + i % columns];
  }
};
template <class A>
struct DivideVector {
  A *vector, *moment;
  double towards;
  TERRACE_KERNEL void operator()(std::int64_t i) const {
    vector[i] = rules::AdafactorLayer::divided(vector[i], moment[i], towards);
  }
};

template <class A>
struct ScaleNumbers {
  A* numbers;
  const double* by;
  TERRACE_KERNEL void operator()(std::int64_t i) const { numbers[i] = static_cast<A>(*by) * numbers[i]; }
};
template <class A>
struct CombineNumbers {
  A* to;
  const A* with;
  A a, b;
  TERRACE_KERNEL void operator()(std::int64_t i) const { to[i] = rules::MuonLayer::combined(to[i], with[i], a, b); }
};

// --- Operations on a tensor's sum; the result replaces the first block's sum ---

struct KeepSum {
  double* out;
  TERRACE_KERNEL void operator()(double sum) const { *out = sum; }
};
struct LambRate {
  double* weights_then_rate;
  double learning_rate;
  bool plain;
  TERRACE_KERNEL void operator()(double directions) const {
    *weights_then_rate = learning_rate * rules::LambLayer::trust(plain, *weights_then_rate, directions);
  }
};
struct AdafactorRate {
  double* weights_then_rate;
  double learning_rate, elements;
  TERRACE_KERNEL void operator()(double directions) const {
    *weights_then_rate = rules::AdafactorLayer::rate(learning_rate, *weights_then_rate, directions, elements);
  }
};
struct InverseNorm {
  double* out;
  TERRACE_KERNEL void operator()(double squares) const { *out = rules::MuonLayer::inverse_norm(squares); }
};

// --- Rules of UpdateTile ---

struct LambDirects {
  static constexpr bool kDirects = true;
  static constexpr std::array kStates{ChunkKind::first_moment, ChunkKind::second_moment};
  template <class A>
  using Factors = rules::LambLayer::Factors<A>;
  template <class A>
  TERRACE_KERNEL static A direction(const Factors<A>& f, std::int64_t, A weight, A gradient, A& m, A& v) {
    return rules::LambLayer::direction(f, weight, gradient, m, v);
  }
};

struct AdafactorDirects {
  static constexpr bool kDirects = true;
  static constexpr std::array<ChunkKind, 0> kStates{};
  template <class A>
  struct Factors {
    A gradient_scale;
  };
  template <class A>
  TERRACE_KERNEL static A direction(const Factors<A>& f, std::int64_t, A, A gradient, A&, A&) {
    return gradient * f.gradient_scale;
  }
};

struct MuonDirects {
  static constexpr bool kDirects = true;
  static constexpr std::array kStates{ChunkKind::first_moment};
  template <class A>
  struct Factors {
    rules::MuonLayer::MomentumFactors<A> of_matrix;
    rules::MuonLayer::AdamFactors<A> of_rest;
    A* second;  // second moments of the part's elements; null: the part is of a matrix
  };
  template <class A>
  TERRACE_KERNEL static A direction(const Factors<A>& f, std::int64_t element, A, A gradient, A& m, A&) {
    return f.second ? rules::MuonLayer::direction(f.of_rest, gradient, m, f.second[element])
                    : rules::MuonLayer::direction(f.of_matrix, gradient, m);
  }
};

struct Descends {
  static constexpr std::array<ChunkKind, 0> kStates{};
  template <class A>
  struct Factors {
    const double* rate_at;  // null: use `rate`
    A rate, decay;
  };
  template <class A>
  TERRACE_KERNEL static void element(const Factors<A>& f, A& weight, A direction, A&, A&) {
    const A rate = f.rate_at ? static_cast<A>(*f.rate_at) : f.rate;
    rules::descend_by<A>(rate, f.decay, weight, direction);
  }
};

}  // namespace terrace::cuda
