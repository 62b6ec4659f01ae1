// Addition, scaling, biases, conversion between dtypes, and zeros: the same bits as on the CPU.
#pragma once

#include <type_traits>

#include <terrace/core/cuda/kernels/functions.h>
#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

template <class T>
struct AddArgs {
  T* y;
  const T *x, *r;  // either may be y
  std::int64_t elements;
  bool whole;
};
template <class T>
struct Add {
  static constexpr int kThreads = 256, kVectors = 4;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const AddArgs<T>& a) const {
    constexpr int W = kWidth<T>;
    for_block_vectors<W, kVectors>(lane, a.elements, [&](std::int64_t i, std::int64_t left) {
      Acc<T> v[W], r[W];
      load(v, a.x + i, left, a.whole);
      load(r, a.r + i, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) v[k] += r[k];
      store(a.y + i, v, left, a.whole);
    });
  }
};

template <class T>
struct ScaleArgs {
  T* y;
  const T *x, *gain;
  std::int64_t columns;
  bool accumulate, whole;
};
// y[rows, columns] (+)= x · gain[columns].
template <class T>
struct ScaleRows {
  static constexpr int kThreads = 256, kW = kWidth<T>;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const ScaleArgs<T>& a) const {
    const std::int64_t column = (static_cast<std::int64_t>(lane.block_y()) * lane.threads() + lane.thread()) * kW;
    const std::int64_t left = a.columns - column, at = lane.block_x() * a.columns + column;
    if (left <= 0) return;
    Acc<T> v[kW], g[kW];
    load(v, a.x + at, left, a.whole);
    load(g, a.gain + column, left, a.whole);
    TERRACE_UNROLL
    for (int k = 0; k < kW; ++k) v[k] *= g[k];
    deliver(a.y + at, v, left, a.whole, a.accumulate);
  }
};

template <class T>
struct MultiplyArgs {
  T* y;
  const T* x;  // may be y
  std::int64_t elements;
  Acc<T> factor;
  bool whole;
};
template <class T>
struct Multiply {
  static constexpr int kThreads = 256, kVectors = 4;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const MultiplyArgs<T>& a) const {
    constexpr int W = kWidth<T>;
    for_block_vectors<W, kVectors>(lane, a.elements, [&](std::int64_t i, std::int64_t left) {
      Acc<T> v[W];
      load(v, a.x + i, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) v[k] *= a.factor;
      store(a.y + i, v, left, a.whole);
    });
  }
};

template <class T>
struct SoftCapArgs {
  T* out;       // y, or dx
  const T* dy;  // null: forward
  const T* x;   // for the gradient: y
  std::int64_t elements;
  Acc<T> cap;
  bool whole;
};
template <class T>
struct SoftCap {
  static constexpr int kThreads = 256, kVectors = 4;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const SoftCapArgs<T>& a) const {
    constexpr int W = kWidth<T>;
    for_block_vectors<W, kVectors>(lane, a.elements, [&](std::int64_t i, std::int64_t left) {
      Acc<T> v[W], d[W];
      load(v, a.x + i, left, a.whole);
      if (a.dy) load(d, a.dy + i, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) v[k] = a.dy ? d[k] * cap_slope(v[k], a.cap) : capped(v[k], a.cap);
      store(a.out + i, v, left, a.whole);
    });
  }
};

template <class T, class Bias>
struct BiasArgs {
  T* c;
  const Bias* bias;
  std::int64_t columns;
  bool accumulate, whole;
};
// c[rows, columns] (+)= bias[columns].
template <class T, class Bias>
struct BiasRows {
  static constexpr int kThreads = 256, kW = kCommonWidth<T, Bias>;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const BiasArgs<T, Bias>& a) const {
    const std::int64_t column = (static_cast<std::int64_t>(lane.block_y()) * lane.threads() + lane.thread()) * kW;
    const std::int64_t left = a.columns - column;
    if (left <= 0) return;
    Acc<Bias> b[kW];
    Acc<T> v[kW];
    load(b, a.bias + column, left, a.whole);
    TERRACE_UNROLL
    for (int k = 0; k < kW; ++k) v[k] = static_cast<Acc<T>>(b[k]);
    deliver(a.c + lane.block_x() * a.columns + column, v, left, a.whole, a.accumulate);
  }
};

template <class T>
struct ColumnsArgs {
  T* y;
  const T* x;
  std::int64_t y_columns, x_columns;  // of the whole matrices
  std::int64_t columns;
  bool accumulate, whole;
};

// A slice of columns of each row, from one matrix to another.
template <class T>
struct CopyColumns {
  static constexpr int kThreads = 256, kW = kWidth<T>;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const ColumnsArgs<T>& a) const {
    const std::int64_t column = (static_cast<std::int64_t>(lane.block_y()) * lane.threads() + lane.thread()) * kW;
    const std::int64_t left = a.columns - column;
    if (left <= 0) return;
    Acc<T> v[kW];
    load(v, a.x + lane.block_x() * a.x_columns + column, left, a.whole);
    deliver(a.y + lane.block_x() * a.y_columns + column, v, left, a.whole, a.accumulate);
  }
};

template <class To, class From>
struct ConvertArgs {
  To* y;
  const From* x;
  std::int64_t elements;
  bool accumulate, whole;
};
// Uses fp32 arithmetic unless fp64 takes part: a sum is computed in the wider of the two types, and rounded once to fp32, then
// once to bf16.
template <class To, class From>
struct Convert {
  static constexpr int kThreads = 256, kVectors = 2;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const ConvertArgs<To, From>& a) const {
    using Sum = std::conditional_t<sizeof(To) == 8 || sizeof(From) == 8, double, float>;
    constexpr int W = kCommonWidth<To, From>;
    for_block_vectors<W, kVectors>(lane, a.elements, [&](std::int64_t i, std::int64_t left) {
      Acc<From> v[W];
      Acc<To> out[W] = {};
      load(v, a.x + i, left, a.whole);
      if (a.accumulate) load(out, static_cast<const To*>(a.y) + i, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) {
        const Sum x = static_cast<Sum>(v[k]);
        out[k] = static_cast<Acc<To>>(a.accumulate ? static_cast<Sum>(out[k]) + x : x);
      }
      store(a.y + i, out, left, a.whole);
    });
  }
};

struct ZeroArgs {
  unsigned char* y;
  std::int64_t bytes;
  bool whole;
};
struct Zero {
  static constexpr int kThreads = 256, kVectors = 4;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const ZeroArgs& a) const {
    for_block_vectors<kWordBytes, kVectors>(lane, a.bytes, [&](std::int64_t i, std::int64_t left) {
      if (a.whole && left >= kWordBytes) {
        store_word(a.y + i, Word{});
      } else {
        for (int k = 0; k < kWordBytes && k < left; ++k) a.y[i + k] = 0;
      }
    });
  }
};

}  // namespace terrace::cuda
