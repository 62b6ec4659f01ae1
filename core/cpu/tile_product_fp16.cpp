// Products of fp16: a part of the inner sum at a time is widened, exactly, and multiplied in fp32; parts add up in ascending
// order. oneDNN multiplies fp16 from version 3 on only, and only on processors that compute in it; this gives every processor
// the same sums of products that fp32 operands have.
#include <terrace/core/cpu/tile_product.h>

namespace terrace::cpu {
namespace {

// Elements of the inner sum: a tile's widened operands fit a second-level cache.
constexpr std::int64_t kPart = 512;

// Columns [first, first + count) of op(x), which has `rows` rows.
Operand<float> widened(const Kernels& kernels, Operand<Fp16> x, std::int64_t rows, std::int64_t first, std::int64_t count,
                       Scratch slot) {
  const auto widen = convert_kernel(kernels, DType::fp32, DType::fp16, false);
  auto* const copy = scratch<float>(slot, rows * count);
  const Fp16* const from = x.data + (x.transposed ? first * x.stride : first);
  const std::int64_t stored_rows = x.transposed ? count : rows, stored_columns = x.transposed ? rows : count;
  for (std::int64_t i = 0; i < stored_rows; ++i) widen(copy + i * stored_columns, from + i * x.stride, stored_columns);
  return {copy, stored_columns, x.transposed};
}
template <class T>
Operand<T> across(Operand<T> x) {
  return {x.data, x.stride, !x.transposed};
}

}  // namespace

void tile_product(const Kernels& kernels, float* c, std::int64_t ldc, Operand<Fp16> a, Operand<Fp16> b, std::int64_t m,
                  std::int64_t n, std::int64_t k) {
  for (std::int64_t i = 0; k == 0 && i < m; ++i) std::fill_n(c + i * ldc, n, 0.0F);
  for (std::int64_t first = 0; first < k; first += kPart) {
    const std::int64_t count = std::min(kPart, k - first);
    const auto left = widened(kernels, a, m, first, count, Scratch::operand_a);
    const auto right = across(widened(kernels, across(b), n, first, count, Scratch::operand_b));
    tile_product(kernels, c, ldc, left, right, m, n, count, first > 0);
  }
}

}  // namespace terrace::cpu
