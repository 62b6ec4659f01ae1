#include <terrace/core/math/cpu/tile_product_widened.h>

#include <array>

#include <terrace/core/math/float8.h>

namespace terrace::cpu {
namespace {

// Elements of the inner sum per part: a tile's widened operands then fit a second-level cache.
constexpr std::int64_t kPart = 512;

constexpr DType dtype_of(Fp16) { return DType::fp16; }
constexpr DType dtype_of(std::uint16_t) { return DType::bf16; }
constexpr DType dtype_of(E4m3) { return DType::e4m3; }
constexpr DType dtype_of(E5m2) { return DType::e5m2; }

// Widens a row of numbers: by a kernel, or codes by a table.
template <class T>
struct Widen {
  explicit Widen(const Kernels& kernels) : kernel(convert_kernel(kernels, DType::fp32, dtype_of(T{}), false)) {}
  void operator()(float* to, const T* from, std::int64_t n) const { kernel(to, from, n); }
  ConvertKernel kernel;
};
template <class T>
requires(sizeof(T) == 1) struct Widen<T> {
  explicit Widen(const Kernels&) {}
  void operator()(float* to, const T* from, std::int64_t n) const {
    static constexpr auto kValues = [] {
      std::array<float, 256> all{};
      for (std::size_t code = 0; code < all.size(); ++code)
        all[code] = math::float8_value(static_cast<std::uint8_t>(code), math::float8_format(dtype_of(T{})));
      return all;
    }();
    for (std::int64_t i = 0; i < n; ++i) to[i] = kValues[from[i].code];
  }
};

// Columns [first, first + count) of op(x), which has `rows` rows.
template <class T>
Operand<float> widened(const Kernels& kernels, Operand<T> x, std::int64_t rows, std::int64_t first, std::int64_t count,
                       Scratch slot) {
  const Widen<T> widen(kernels);
  auto* const copy = scratch<float>(slot, rows * count);
  const T* const from = x.data + (x.transposed ? first * x.stride : first);
  const std::int64_t stored_rows = x.transposed ? count : rows, stored_columns = x.transposed ? rows : count;
  for (std::int64_t i = 0; i < stored_rows; ++i) widen(copy + i * stored_columns, from + i * x.stride, stored_columns);
  return {copy, stored_columns, x.transposed};
}
template <class T>
Operand<T> across(Operand<T> x) {
  return {x.data, x.stride, !x.transposed};
}

}  // namespace

template <class A, class B>
void widened_product(const Kernels& kernels, float* c, std::int64_t ldc, Operand<A> a, Operand<B> b, std::int64_t m,
                     std::int64_t n, std::int64_t k) {
  for (std::int64_t i = 0; k == 0 && i < m; ++i) std::fill_n(c + i * ldc, n, 0.0F);
  for (std::int64_t first = 0; first < k; first += kPart) {
    const std::int64_t count = std::min(kPart, k - first);
    const auto left = widened(kernels, a, m, first, count, Scratch::operand_a);
    const auto right = across(widened(kernels, across(b), n, first, count, Scratch::operand_b));
    tile_product(kernels, c, ldc, left, right, m, n, count, first > 0);
  }
}

template void widened_product(const Kernels&, float*, std::int64_t, Operand<Fp16>, Operand<Fp16>, std::int64_t, std::int64_t,
                              std::int64_t);
template void widened_product(const Kernels&, float*, std::int64_t, Operand<std::uint16_t>, Operand<std::uint16_t>,
                              std::int64_t, std::int64_t, std::int64_t);
template void widened_product(const Kernels&, float*, std::int64_t, Operand<E4m3>, Operand<E4m3>, std::int64_t, std::int64_t,
                              std::int64_t);
template void widened_product(const Kernels&, float*, std::int64_t, Operand<E4m3>, Operand<E5m2>, std::int64_t, std::int64_t,
                              std::int64_t);
template void widened_product(const Kernels&, float*, std::int64_t, Operand<E5m2>, Operand<E4m3>, std::int64_t, std::int64_t,
                              std::int64_t);
template void widened_product(const Kernels&, float*, std::int64_t, Operand<E5m2>, Operand<E5m2>, std::int64_t, std::int64_t,
                              std::int64_t);

// oneDNN multiplies fp16 from version 3 on, and only on processors that compute in fp16. Widening gives the same sums on every
// processor as fp32 operands do.
void tile_product(const Kernels& kernels, float* c, std::int64_t ldc, Operand<Fp16> a, Operand<Fp16> b, std::int64_t m,
                  std::int64_t n, std::int64_t k) {
  widened_product(kernels, c, ldc, a, b, m, n, k);
}

}  // namespace terrace::cpu
