// Softmax cross-entropy with its gradient, one block per row. The first sweep sums (log_sums.h). The second writes the
// gradient; it finds the row in the second-level cache, so memory sees one read and one write. If the columns are only a part
// of the row, the log-sum-exp is given, and only the second sweep runs.
#pragma once

#include <limits>

#include <terrace/core/cuda/kernels/fault.h>
#include <terrace/core/cuda/kernels/log_sums.h>
#include <terrace/core/math/targets.h>

namespace terrace::cuda {

template <class Lane, class T, class A = Acc<T>>
TERRACE_KERNEL void fill_row(Lane& lane, T* row, std::int64_t columns, A with, bool whole) {
  constexpr int W = kSoftmaxWidth<T>;
  for_vectors<W>(lane, columns, [&](std::int64_t i, std::int64_t left) {
    A v[W];
    TERRACE_UNROLL
    for (int k = 0; k < W; ++k) v[k] = with;
    store(row + i, v, left, whole);
  });
}

template <class T>
struct CrossEntropyArgs {
  double* loss;
  T* dlogits;  // may be null, may be logits
  const T* logits;
  const std::int32_t* targets;
  FaultWord* fault;
  std::int64_t columns, stride;
  double scale;
  bool whole;
};
template <class T>
struct CrossEntropyRows {
  static constexpr int kThreads = 1024;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const CrossEntropyArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kSoftmaxWidth<T>;
    const std::int64_t row = lane.block_x();
    const T* const x = a.logits + row * a.stride;
    T* const dx = a.dlogits ? a.dlogits + row * a.stride : nullptr;
    const std::int32_t target = a.targets[row];
    const bool wrong = target < math::kPadding || target >= a.columns;
    if (target < 0 || wrong) {  // the same for all threads of the block
      const A fill = wrong ? std::numeric_limits<A>::quiet_NaN() : A(0);
      if (lane.thread() == 0) {
        a.loss[row] = static_cast<double>(fill);
        if (wrong) report_fault(a.fault, row, target);
      }
      if (dx) fill_row(lane, dx, a.columns, fill, a.whole);
      return;
    }
    const A hit = widen(x[target]);
    const auto sum = block_exp_sum(lane, x, a.columns, a.whole);
    const A m = sum.most, total = sum.total;
    if (lane.thread() == 0) {
      a.loss[row] = std::log(static_cast<double>(total)) + (static_cast<double>(m) - static_cast<double>(hit));
    }
    if (!dx) return;
    const std::int32_t place = a.targets[row];  // again: in fp64 the sweep above leaves no register to keep it in
    const A scale = static_cast<A>(a.scale), factor = scale / total;
    // The target's entry is computed separately, with a single rounding: (p − 1) · scale.
    const A at_target = (softmax_exponential(hit - m) / total - A(1)) * scale;
    for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
      A v[W];
      load(v, x + i, left, a.whole);
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) v[k] = i + k == place ? at_target : softmax_exponential(v[k] - m) * factor;
      store(dx + i, v, left, a.whole);
    });
  }
};

template <class T>
struct CrossEntropyPartArgs {
  double* loss;
  T* dlogits;  // may be null, may be logits
  const T* logits;
  const std::int32_t* targets;
  const Acc<T>* lse;
  FaultWord* fault;
  std::int64_t columns, stride;
  double scale;
  bool whole;
};
template <class T>
struct CrossEntropyPartRows {
  static constexpr int kThreads = 1024;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const CrossEntropyPartArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kSoftmaxWidth<T>;
    const std::int64_t row = lane.block_x();
    const T* const x = a.logits + row * a.stride;
    T* const dx = a.dlogits ? a.dlogits + row * a.stride : nullptr;
    const std::int32_t target = a.targets[row];
    const bool wrong = target < math::kPadding || target >= a.columns;
    const A lse = a.lse[row];
    if (lane.thread() == 0) {
      double loss = wrong ? std::numeric_limits<double>::quiet_NaN() : 0.0;
      if (target >= 0 && !wrong) loss = static_cast<double>(lse) - static_cast<double>(widen(x[target]));
      a.loss[row] = loss;
      if (wrong) report_fault(a.fault, row, target);
    }
    if (!dx) return;
    lane.sync();  // the target's logit has been read: now the row may be overwritten
    if (wrong) return fill_row(lane, dx, a.columns, std::numeric_limits<A>::quiet_NaN(), a.whole);
    if (lse == std::numeric_limits<A>::infinity()) return fill_row(lane, dx, a.columns, A(0), a.whole);
    const A scale = static_cast<A>(a.scale);
    for_vectors<W>(lane, a.columns, [&](std::int64_t i, std::int64_t left) {
      A v[W];
      load(v, x + i, left, a.whole);
      // The target's entry is computed separately, with a single rounding: (p − 1) · scale.
      TERRACE_UNROLL
      for (int k = 0; k < W; ++k) {
        const A p = softmax_exponential(v[k] - lse);
        v[k] = (i + k == target ? p - A(1) : p) * scale;
      }
      store(dx + i, v, left, a.whole);
    });
  }
};

}  // namespace terrace::cuda
