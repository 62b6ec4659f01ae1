// The shapes of launches, and the choice of types for an operation: everything depends only on logical shapes and dtypes.
//
// Threads: any.
#pragma once

#include <algorithm>

#include <terrace/core/cuda/kernels/vectors.h>
#include <terrace/core/cuda/with_type.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda {

// As with_type(), for the gradient of a weight, which has the compute dtype T or the sum type of T.
template <class T, class F>
void with_gradient_type(DType dtype, F&& f) {
  if (dtype == dtype_of<T>::value) return f.template operator()<T>();
  f.template operator()<Acc<T>>();
}

template <class T>
T* data(const TensorView& view) {
  return reinterpret_cast<T*>(view.data);
}

// True if the rows (`stride` elements apart) of all tensors that are not empty begin at multiples of 16 bytes.
inline bool whole_words(std::int64_t stride, std::initializer_list<TensorView> tensors) {
  return std::ranges::all_of(tensors, [&](const TensorView& v) {
    return v.empty() || (reinterpret_cast<std::uintptr_t>(v.data) % kWordBytes == 0 &&
                         stride * static_cast<std::int64_t>(size_of(v.dtype)) % kWordBytes == 0);
  });
}

// The threads, in whole warps, for a row that is taken in vectors of `width`; at most `most`.
inline int threads_of_row(std::int64_t columns, int width, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(ceil_div(columns, std::int64_t{width} * kWarp) * kWarp, kWarp, most));
}
// Shared memory for sums over a block (block_sums.h).
template <class A>
inline constexpr std::size_t kRoomBytes = kWarp * sizeof(A);

// One block per row.
template <class Kernel, class T>
LaunchShape row_shape(std::int64_t rows, std::int64_t columns) {
  return {.blocks = {rows, 1, 1},
          .threads = threads_of_row(columns, kWidth<T>, Kernel::kThreads),
          .shared_bytes = kRoomBytes<Acc<T>>};
}
// A flat range, in blocks of Kernel::kThreads × Kernel::kVectors vectors of `width` elements.
template <class Kernel>
LaunchShape flat_shape(std::int64_t elements, int width) {
  return {.blocks = {ceil_div(elements, std::int64_t{Kernel::kThreads} * Kernel::kVectors * width), 1, 1},
          .threads = Kernel::kThreads};
}
// One block per row (or per few rows) and slice of columns.
template <class Kernel>
LaunchShape slice_shape(std::int64_t rows, std::int64_t columns) {
  const int threads = threads_of_row(columns, Kernel::kW, Kernel::kThreads);
  return {.blocks = {rows, ceil_div(columns, std::int64_t{threads} * Kernel::kW), 1}, .threads = threads};
}

}  // namespace terrace::cuda
