// A view of a dense row-major tensor: pointer, dtype, shape. It owns nothing.
//
// Owner:   the bytes belong to their lease or allocation; a view must not outlive them.
// Threads: a value; the bytes follow their stream's order.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include <terrace/core/math/dtype.h>

namespace terrace {

// Up to four dimensions; a scalar has rank 0 and one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) {
    if (dims.size() > 4) throw std::logic_error("Shape: more than four dimensions");
    for (const auto d : dims) dims_[rank_++] = d;
  }
  [[nodiscard]] std::size_t rank() const { return rank_; }
  [[nodiscard]] std::int64_t operator[](std::size_t i) const { return dims_[i]; }
  [[nodiscard]] std::int64_t elements() const {
    std::int64_t n = 1;
    for (std::size_t i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, 4> dims_{};
  std::size_t rank_ = 0;
};
std::string to_string(const Shape& shape);  // "[768, 2304]"

struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::fp32;
  Shape shape;

  [[nodiscard]] bool empty() const { return data == nullptr; }
  [[nodiscard]] std::int64_t elements() const { return shape.elements(); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(dtype); }
  // The typed pointer; throws std::logic_error if T is not the view's dtype.
  template <class T>
  [[nodiscard]] T* as() const {
    if (dtype_of<T>::value != dtype) throw std::logic_error("TensorView: wrong dtype");
    return reinterpret_cast<T*>(data);
  }
};

// The last dimension, and the product of all others.
inline std::int64_t columns_of(const TensorView& v) { return v.shape.rank() == 0 ? 1 : v.shape[v.shape.rank() - 1]; }
inline std::int64_t rows_of(const TensorView& v) {
  std::int64_t n = 1;
  for (std::size_t i = 0; i + 1 < v.shape.rank(); ++i) n *= v.shape[i];
  return n;
}

// A matrix whose rows may lie further apart than they are long, so that each begins at an aligned address (the logits of a
// vocabulary of 50,257). The gap after each row belongs to the matrix; its content is undefined. A tensor is a matrix without
// gaps.
struct MatrixView {
  TensorView view;
  std::int64_t stride = 0;  // elements from one row to the next, at least the columns

  MatrixView() = default;
  template <std::convertible_to<TensorView> Tensor>
  MatrixView(const Tensor& tensor) : view(tensor), stride(columns_of(view)) {}
  MatrixView(const TensorView& rows, std::int64_t row_stride) : view(rows), stride(row_stride) {}

  [[nodiscard]] bool empty() const { return view.empty(); }
  // The rows together with their gaps.
  [[nodiscard]] TensorView with_gaps() const {
    const auto columns = columns_of(view);
    return columns == 0 || empty() ? view : TensorView{view.data, view.dtype, {view.elements() / columns, stride}};
  }
};

inline std::int64_t columns_of(const MatrixView& m) { return columns_of(m.view); }
inline std::int64_t rows_of(const MatrixView& m) { return rows_of(m.view); }

struct TensorSpec {
  std::string name;
  DType dtype = DType::fp32;
  Shape shape;
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(shape.elements()) * size_of(dtype); }
};

}  // namespace terrace
