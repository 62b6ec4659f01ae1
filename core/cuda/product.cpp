#include <fmt/format.h>

#include <terrace/core/cuda/product.h>

namespace terrace::cuda {

std::string to_string(const ProductKey& p) {
  const auto operand = [](std::int64_t rows, std::int64_t columns, bool transposed) {
    return transposed ? fmt::format("[{}, {}]ᵀ", columns, rows) : fmt::format("[{}, {}]", rows, columns);
  };
  return fmt::format("[{}, {}] {} {} {} · {}{}, to {}, aligned to {}", p.m, p.n, p.accumulate ? "+=" : "=", name_of(p.in),
                     operand(p.m, p.k, p.a_transposed), operand(p.k, p.n, p.b_transposed), p.bias ? " + bias" : "",
                     name_of(p.out), p.aligned_bytes);
}

ProductKey key_of(const TensorView& c, const TensorView& a, Transpose ta, const TensorView& b, Transpose tb, bool bias,
                  bool accumulate) {
  std::uintptr_t addresses = 16;
  for (const auto& v : {c, a, b}) addresses |= reinterpret_cast<std::uintptr_t>(v.data);
  return {.m = rows_of(c),
          .n = columns_of(c),
          .k = ta == Transpose::yes ? rows_of(a) : columns_of(a),
          .a_transposed = ta == Transpose::yes,
          .b_transposed = tb == Transpose::yes,
          .in = a.dtype,
          .out = c.dtype,
          .bias = bias,
          .accumulate = accumulate,
          .aligned_bytes = static_cast<int>(addresses & -addresses)};
}

ColumnProduct by_columns(const ProductKey& p) {
  // [rows, columns] by rows is [columns, rows] by columns, each of its columns `columns` long.
  const auto turned = [](std::int64_t rows, std::int64_t columns) { return ColumnMajor{columns, rows, columns}; };
  return {.first = p.b_transposed ? turned(p.n, p.k) : turned(p.k, p.n),
          .second = p.a_transposed ? turned(p.k, p.m) : turned(p.m, p.k),
          .result = turned(p.m, p.n),
          .first_transposed = p.b_transposed,
          .second_transposed = p.a_transposed};
}

}  // namespace terrace::cuda
