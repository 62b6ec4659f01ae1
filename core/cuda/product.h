// A matrix product of row-major tensors as cuBLASLt sees it. cuBLASLt expects column-major matrices, and a row-major matrix
// read by columns is its own transpose: so it computes cᵀ = op(b)ᵀ · op(a)ᵀ, with b as the first operand, and no byte is moved.
//
// Owner, threads: values.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include <terrace/core/math/math.h>

namespace terrace::cuda {

// Everything that the choice of an algorithm may depend on.
struct ProductKey {
  std::int64_t m = 0, n = 0, k = 0;  // c[m, n] = op(a)[m, k] · op(b)[k, n]
  bool a_transposed = false, b_transposed = false;
  DType in = DType::fp32, out = DType::fp32;
  bool bias = false, accumulate = false;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0;  // from one stored row to the next; 0: rows without gaps
  int aligned_bytes = 0;                                  // of all three tensors; at most 16: more makes no difference
  bool up_to = false;                                     // of so many tokens, or of up to 127 fewer
  std::optional<DType> b_in = {};                         // of b, if it is not that of a: for operands of 8 bits
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};
std::string to_string(
    const ProductKey& key);  // "[4096, 1024] = bf16 [4096, 512] · [1024, 512]ᵀ + bias, to fp32, aligned to 16"

// The key under which a product shares its algorithm with others. Numbers of tokens over 128 are rounded up to a multiple of
// it, because experts get another number in each step: tokens are the rows of an a that is not transposed, and the inner
// dimension of aᵀ · b. A product that is added to c sums its terms like one that is not, so that it makes no difference who
// adds.
ProductKey shared_key(ProductKey key);

// Whether the sum over k may be split in parts, which are added afterwards. cuBLASLt 13.1.1 leaves out the last k % 64 terms of
// some split sums without an error (github.com/facebookexperimental/triton, #2767), and rounds a split sum before it adds a
// bias (github.com/pytorch/pytorch, #180875).
constexpr bool may_split(const ProductKey& key) { return key.k % 128 == 0 && !key.bias && !key.up_to; }
// Whether a split is worth it: one block for each tile of 128 × 128 elements leaves most of a GPU idle.
constexpr bool has_few_tiles(const ProductKey& key) { return (key.m + 127) / 128 * ((key.n + 127) / 128) < 64; }

ProductKey key_of(const MatrixView& c, const MatrixView& a, Transpose ta, const MatrixView& b, Transpose tb, bool bias,
                  bool accumulate);

// A column-major matrix; `stride` elements from one column to the next.
struct ColumnMajor {
  std::int64_t rows = 0, columns = 0, stride = 0;
  friend bool operator==(const ColumnMajor&, const ColumnMajor&) = default;
};
// result = op(first) · op(second). The rows of the result are the columns of c, so a bias along c's columns lies along its
// rows.
struct ColumnProduct {
  ColumnMajor first, second, result;
  bool first_transposed = false, second_transposed = false;
};
ColumnProduct by_columns(const ProductKey& key);

}  // namespace terrace::cuda
