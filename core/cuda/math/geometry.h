// The shapes of launches, and how an operation finds its types: everything depends on logical shapes and dtypes only.
//
// Threads: any.
#pragma once

#include <algorithm>

#include <terrace/core/cuda/kernels/vectors.h>
#include <terrace/core/cuda/with_type.h>
#include <terrace/core/math_arguments.h>

namespace terrace::cuda {

// As with_type(), for a weight's gradient, which has the compute dtype T or T's sum type.
template <class T, class F>
void with_gradient_type(DType dtype, F&& f) {
  if (dtype == dtype_of<T>::value) return f.template operator()<T>();
  f.template operator()<Acc<T>>();
}

template <class T>
T* data(const TensorView& view) {
  return reinterpret_cast<T*>(view.data);
}

// Whether all rows, which lie `stride` elements apart, of all (not empty) tensors begin at multiples of 16 bytes.
inline bool whole_words(std::int64_t stride, std::initializer_list<TensorView> tensors) {
  return std::ranges::all_of(tensors, [&](const TensorView& v) {
    return v.empty() || (reinterpret_cast<std::uintptr_t>(v.data) % kWordBytes == 0 &&
                         stride * static_cast<std::int64_t>(size_of(v.dtype)) % kWordBytes == 0);
  });
}

// Whole warps that take a row in vectors of `width`, at most `most`.
inline int threads_of_row(std::int64_t columns, int width, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(ceil_div(columns, std::int64_t{width} * kWarp) * kWarp, kWarp, most));
}
// Shared memory of sums over a block (block_sums.h).
template <class A>
inline constexpr std::size_t kRoomBytes = kWarp * sizeof(A);

// A block a row.
template <class Kernel, class T>
LaunchShape row_shape(std::int64_t rows, std::int64_t columns) {
  return {.blocks = {rows, 1, 1},
          .threads = threads_of_row(columns, kWidth<T>, Kernel::kThreads),
          .shared_bytes = kRoomBytes<Acc<T>>};
}
// A flat range in blocks of Kernel::kThreads × Kernel::kVectors vectors of `width` elements.
template <class Kernel>
LaunchShape flat_shape(std::int64_t elements, int width) {
  return {.blocks = {ceil_div(elements, std::int64_t{Kernel::kThreads} * Kernel::kVectors * width), 1, 1},
          .threads = Kernel::kThreads};
}
// A block a row (or a few) and a slice of its columns.
template <class Kernel>
LaunchShape slice_shape(std::int64_t rows, std::int64_t columns) {
  const int threads = threads_of_row(columns, Kernel::kW, Kernel::kThreads);
  return {.blocks = {rows, ceil_div(columns, std::int64_t{threads} * Kernel::kW), 1}, .threads = threads};
}

}  // namespace terrace::cuda
