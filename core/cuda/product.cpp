#include <fmt/format.h>

#include <utility>

#include <terrace/core/cuda/product.h>

namespace terrace::cuda {

std::string to_string(const ProductKey& p) {
  const auto operand = [](std::int64_t rows, std::int64_t columns, bool transposed) {
    return transposed ? fmt::format("[{}, {}]ᵀ", columns, rows) : fmt::format("[{}, {}]", rows, columns);
  };
  std::string apart;
  for (const auto& [name, stride] : {std::pair{'a', p.a_stride}, std::pair{'b', p.b_stride}, std::pair{'c', p.c_stride}})
    if (stride != 0) apart += fmt::format(", rows of {} every {}", name, stride);
  return fmt::format("[{}, {}] {} {} {} · {}{}{}, to {}, aligned to {}{}{}", p.m, p.n, p.accumulate ? "+=" : "=", name_of(p.in),
                     operand(p.m, p.k, p.a_transposed), p.b_in ? fmt::format("{} ", name_of(*p.b_in)) : "",
                     operand(p.k, p.n, p.b_transposed), p.bias ? " + bias" : "", name_of(p.out), p.aligned_bytes, apart,
                     p.up_to ? ", or up to 127 tokens fewer" : "");
}

ProductKey shared_key(ProductKey key) {
  constexpr std::int64_t kTokens = 128;
  key.accumulate = false;
  if (key.a_transposed && key.b_transposed) return key;
  auto& tokens = key.a_transposed ? key.k : key.m;
  if (tokens <= kTokens || tokens % kTokens == 0) return key;
  tokens += kTokens - tokens % kTokens;
  key.up_to = true;
  return key;
}

ProductKey key_of(const MatrixView& c, const MatrixView& a, Transpose ta, const MatrixView& b, Transpose tb, bool bias,
                  bool accumulate) {
  std::uintptr_t addresses = 16;
  for (const auto& v : {c, a, b}) addresses |= reinterpret_cast<std::uintptr_t>(v.view.data);
  const auto apart = [](const MatrixView& v) { return v.stride == columns_of(v) ? 0 : v.stride; };
  return {.m = rows_of(c),
          .n = columns_of(c),
          .k = ta == Transpose::yes ? rows_of(a) : columns_of(a),
          .a_transposed = ta == Transpose::yes,
          .b_transposed = tb == Transpose::yes,
          .in = a.view.dtype,
          .out = c.view.dtype,
          .bias = bias,
          .accumulate = accumulate,
          .a_stride = apart(a),
          .b_stride = apart(b),
          .c_stride = apart(c),
          .aligned_bytes = static_cast<int>(addresses & -addresses),
          .b_in = a.view.dtype == b.view.dtype ? std::nullopt : std::optional(b.view.dtype)};
}

ColumnProduct by_columns(const ProductKey& p) {
  // A row-major [rows, columns] is a column-major [columns, rows], whose columns are `columns` long.
  const auto turned = [](std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    return ColumnMajor{columns, rows, stride == 0 ? columns : stride};
  };
  return {.first = p.b_transposed ? turned(p.n, p.k, p.b_stride) : turned(p.k, p.n, p.b_stride),
          .second = p.a_transposed ? turned(p.k, p.m, p.a_stride) : turned(p.m, p.k, p.a_stride),
          .result = turned(p.m, p.n, p.c_stride),
          .first_transposed = p.b_transposed,
          .second_transposed = p.a_transposed};
}

}  // namespace terrace::cuda
