// Views of parts of tensors.
//
// Owner:   a view owns nothing. Threads: values. Errors: std::logic_error if a view has another size than its new shape.
#pragma once

#include <cstdint>
#include <stdexcept>

#include <terrace/core/math/tensor.h>

namespace terrace::math {

inline TensorView reshaped(TensorView view, Shape shape) {
  if (shape.elements() != view.elements())
    throw std::logic_error("a view of " + to_string(view.shape) + " cannot be seen as " + to_string(shape));
  view.shape = shape;
  return view;
}

// The elements of `shape` from `first` on; an empty view stays empty.
inline TensorView part(const TensorView& view, std::int64_t first, Shape shape) {
  if (view.empty()) return {};
  return {view.data + static_cast<std::size_t>(first) * size_of(view.dtype), view.dtype, shape};
}

// Rows [first, first + count) of a matrix.
inline TensorView row_slice(const TensorView& view, std::int64_t first, std::int64_t count) {
  return part(view, first * view.shape[1], {count, view.shape[1]});
}

}  // namespace terrace::math
