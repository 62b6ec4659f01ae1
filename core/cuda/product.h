// A matrix product of row-major tensors as cuBLASLt sees it. It thinks in columns, and a row-major matrix read by columns is
// its own transpose: so cᵀ = op(b)ᵀ · op(a)ᵀ, with b as the first operand, and no byte moves.
//
// Owner, threads: values.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <string>

#include <terrace/core/math_arguments.h>

namespace terrace::cuda {

// All that an algorithm is chosen by.
struct ProductKey {
  std::int64_t m = 0, n = 0, k = 0;  // c[m, n] = op(a)[m, k] · op(b)[k, n]
  bool a_transposed = false, b_transposed = false;
  DType in = DType::fp32, out = DType::fp32;
  bool bias = false, accumulate = false;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;  // of the stored matrices' rows; 0: side by side
  int aligned_bytes = 0;                                  // of all three tensors, at most 16: larger is no news to an algorithm
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};
std::string to_string(
    const ProductKey& key);  // "[4096, 1024] = bf16 [4096, 512] · [1024, 512]ᵀ + bias, to fp32, aligned to 16"

ProductKey key_of(const MatrixView& c, const MatrixView& a, Transpose ta, const MatrixView& b, Transpose tb, bool bias,
                  bool accumulate);

// A matrix stored by columns, `stride` elements from one to the next.
struct ColumnMajor {
  std::int64_t rows = 0, columns = 0, stride = 0;
  friend bool operator==(const ColumnMajor&, const ColumnMajor&) = default;
};
// result = op(first) · op(second); the result's rows are c's columns, so a bias along c's columns is one along its rows.
struct ColumnProduct {
  ColumnMajor first, second, result;
  bool first_transposed = false, second_transposed = false;
};
ColumnProduct by_columns(const ProductKey& key);

}  // namespace terrace::cuda
