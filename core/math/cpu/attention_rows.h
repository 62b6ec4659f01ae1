// Rows of one head for the CPU's attention, in the arithmetic type.
//
// Threads: any; a converted copy lies in the calling thread's scratch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <terrace/core/math/cpu/compute.h>
#include <terrace/core/math/math.h>

namespace terrace::cpu {

constexpr std::int64_t kQueryBlock = 64;  // rows of scores computed together: with 2,048 keys they fit a second-level cache

// The row length in memory for this many scores.
inline std::int64_t padded(std::int64_t keys) { return (keys + kSoftmaxPadding - 1) / kSoftmaxPadding * kSoftmaxPadding; }

template <class A>
struct Matrix {
  const A* data;
  std::int64_t stride;
};

// Rows of one head in the arithmetic type: the buffer itself, or a converted copy in scratch.
template <class T>
Matrix<Acc<T>> arithmetic_rows(Compute compute, const T* rows, std::int64_t count, std::int64_t dim, std::int64_t stride,
                               Scratch slot) {
  if constexpr (std::is_same_v<T, Acc<T>>) {
    return {rows, stride};
  } else {
    auto* const copy = scratch<Acc<T>>(slot, count * dim);
    const auto kernel = convert_kernel(compute.kernels, DType::fp32, dtype_of_storage<T>, false);
    for (std::int64_t i = 0; i < count; ++i) kernel(copy + i * dim, rows + i * stride, dim);
    return {copy, dim};
  }
}

// Turns the products of a query and its first n keys into scores. Returns the factor that is still missing: the softmax applies
// it.
template <class A>
A make_scores(Compute compute, const ScoreRule& rule, std::int64_t dim, A* row, std::int64_t n) {
  const auto factor = static_cast<A>(rule.factor(dim));
  if (rule.cap == 0) return factor;
  kernels_for<A>(compute.kernels).soft_cap(row, row, n, factor, static_cast<A>(rule.cap));
  return 1;
}

// p holds such products and becomes the probabilities. dp holds the gradient of the probabilities and becomes that of the
// products.
template <class A>
void softmax_grad(Compute compute, const ScoreRule& rule, std::int64_t dim, A* p, A* dp, std::int64_t n, std::int64_t width,
                  A lse, A inner) {
  const A left = make_scores(compute, rule, dim, p, n);
  A* const scores = rule.cap == 0 ? nullptr : scratch<A>(Scratch::capped, n);
  if (scores) std::copy_n(p, n, scores);
  softmax_for<A>(compute.kernels).softmax_grad_row(p, dp, n, width, left, lse, inner);
  if (scores)
    kernels_for<A>(compute.kernels)
        .soft_cap_grad(dp, dp, scores, n, static_cast<A>(rule.factor(dim)), static_cast<A>(rule.cap));
}

}  // namespace terrace::cpu
