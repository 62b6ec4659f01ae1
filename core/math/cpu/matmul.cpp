#include <terrace/core/math/cpu/ops.h>
#include <terrace/core/math/cpu/tile_product_widened.h>

namespace terrace::cpu {
namespace {

struct Tile {
  std::int64_t rows, columns;
};

// The size of equal parts of at most `largest`, each a multiple of `unit`.
std::int64_t part_of(std::int64_t size, std::int64_t largest, std::int64_t unit) {
  const std::int64_t parts = (size + largest - 1) / largest;
  return std::min(size, ((size + parts - 1) / parts + unit - 1) / unit * unit);
}
std::int64_t parts_of(std::int64_t size, std::int64_t part) { return (size + part - 1) / part; }

// The tile of c, chosen only from its logical shape. Measured on GPT-2's shapes: 256 × 768 loses least against one whole
// product (the library packs both operands again for every tile); 384 columns cost 2 % more, 192 another 4 %. A product with
// few tiles gets narrower ones, so that threads share it evenly. Units are multiples of the kernels' register blocks.
Tile tile_of(std::int64_t m, std::int64_t n) {
  constexpr std::int64_t kRows = 256, kRowUnit = 16, kColumnUnit = 96;
  struct Width {
    std::int64_t columns, tiles_at_least;
  };
  const std::int64_t rows = part_of(m, kRows, kRowUnit), down = parts_of(m, rows);
  for (const auto [width, tiles_at_least] : {Width{768, 16}, Width{384, 6}}) {
    const std::int64_t columns = part_of(n, width, kColumnUnit);
    if (down * parts_of(n, columns) >= tiles_at_least) return {rows, columns};
  }
  return {rows, part_of(n, 192, kColumnUnit)};
}

// Copies the columns of a transposed operand that a tile needs, side by side. Without it they are a long row apart and fall
// into few cache sets (a tenth of the rate at 3,072 columns).
template <class T>
Operand<T> narrowed(Operand<T> a, std::int64_t rows, std::int64_t k) {
  T* const copy = scratch<T>(Scratch::operand_a, rows * k);
  for (std::int64_t l = 0; l < k; ++l) std::copy_n(a.data + l * a.stride, rows, copy + l * rows);
  return {copy, rows, true};
}

// The scales of operands of 8 bits; null for other operands.
struct Scales {
  const float *a = nullptr, *b = nullptr;
};

template <class TA, class TB>
void multiply(Compute compute, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias,
              Accumulate accumulate, const Scales& scales = {}) {
  const bool a_transposed = ta == Transpose::yes, b_transposed = tb == Transpose::yes;
  const std::int64_t m = rows_of(c), n = columns_of(c), k = a_transposed ? rows_of(a) : columns_of(a);
  if (m == 0 || n == 0) return;
  const Tile tile = tile_of(m, n);
  const std::int64_t tiles_down = parts_of(m, tile.rows), tiles_across = parts_of(n, tile.columns);
  const DType inner = accumulator_of(a.view.dtype);
  const auto add_bias = bias.empty() ? nullptr : convert_kernel(compute.kernels, inner, bias.dtype, true);
  // With a bias, the old content of c is added before the bias, so the final conversion must not add it.
  const bool adds_first = accumulate == Accumulate::yes && add_bias;
  const auto add_c = adds_first ? convert_kernel(compute.kernels, inner, c.view.dtype, true) : nullptr;
  const auto deliver = convert_kernel(compute.kernels, c.view.dtype, inner, accumulate == Accumulate::yes && !adds_first);
  // bf16 products go through a tile even if c is fp32: the library adds parts of the inner sum in its output, and the long rows
  // of c would use the caches badly.
  const bool direct = c.view.dtype == a.view.dtype && c.view.dtype == inner && accumulate == Accumulate::no;
  const auto c_bytes = static_cast<std::int64_t>(size_of(c.view.dtype));

  using A = Acc<TA>;
  compute.pool.parallel_for(tiles_down * tiles_across, [&](std::int64_t task) {
    const std::int64_t i = task % tiles_down * tile.rows, j = task / tiles_down * tile.columns;
    const std::int64_t rows = std::min(tile.rows, m - i), columns = std::min(tile.columns, n - j);
    const std::int64_t lda = a.stride, ldb = b.stride;
    Operand<TA> left{raw<TA>(a.view) + (a_transposed ? i : i * lda), lda, a_transposed};
    const Operand<TB> right{raw<TB>(b.view) + (b_transposed ? j * ldb : j), ldb, b_transposed};
    if (std::is_same_v<TA, float> && a_transposed && rows < m) left = narrowed(left, rows, k);
    // The product is complete before anything is added to it: in c itself, or in a tile that the thread keeps.
    A* const product = direct ? raw<A>(c.view) + i * c.stride + j : scratch<A>(Scratch::tile, tile.rows * tile.columns);
    const std::int64_t stride = direct ? c.stride : tile.columns;
    tile_product(compute.kernels, product, stride, left, right, rows, columns, k);
    for (std::int64_t r = 0; r < rows && (add_bias || !direct); ++r) {
      A* const row = product + r * stride;
      std::byte* const its_c = c.view.data + ((i + r) * c.stride + j) * c_bytes;
      for (std::int64_t l = 0; scales.a && l < columns; ++l) row[l] *= static_cast<A>(*scales.a * *scales.b);
      if (add_c) add_c(row, its_c, columns);
      if (add_bias) add_bias(row, bias.data + j * static_cast<std::int64_t>(size_of(bias.dtype)), columns);
      if (!direct) deliver(its_c, row, columns);
    }
  });
}

}  // namespace

void matmul(Compute compute, MatrixView c, MatrixView a, Transpose ta, MatrixView b, Transpose tb, TensorView bias,
            Accumulate accumulate) {
  for_dtype(a.view.dtype, [&]<class T>() { multiply<T, T>(compute, c, a, ta, b, tb, bias, accumulate); });
}

void matmul_float8(Compute compute, MatrixView c, TensorView a, TensorView b, TensorView a_scale, TensorView b_scale,
                   TensorView bias, Accumulate accumulate) {
  const Scales scales{a_scale.as<float>(), b_scale.as<float>()};
  const auto by = [&]<class TA, class TB>() {
    multiply<TA, TB>(compute, c, a, Transpose::no, b, Transpose::yes, bias, accumulate, scales);
  };
  const auto by_a = [&]<class TA>() {
    b.dtype == DType::e4m3 ? by.template operator()<TA, E4m3>() : by.template operator()<TA, E5m2>();
  };
  a.dtype == DType::e4m3 ? by_a.template operator()<E4m3>() : by_a.template operator()<E5m2>();
}

}  // namespace terrace::cpu
