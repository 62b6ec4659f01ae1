// Rows of one head for the CPU's attention, in the arithmetic type.
//
// Threads: any; a converted copy lies in the calling thread's scratch.
#pragma once

#include <cstdint>
#include <type_traits>

#include <terrace/core/cpu/compute.h>

namespace terrace::cpu {

constexpr std::int64_t kQueryBlock = 64;  // rows of scores made together: with 2,048 keys they fit a second-level cache

// The length of a row of so many scores.
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

}  // namespace terrace::cpu
