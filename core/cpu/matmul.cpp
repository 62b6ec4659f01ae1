#include <terrace/core/cpu/ops.h>
#include <terrace/core/cpu/tile_product.h>

namespace terrace::cpu {
namespace {

// The tile of c, from its logical shape only.
struct Tile {
  std::int64_t rows, columns;
};
Tile tile_of(std::int64_t m, std::int64_t n) {
  const std::int64_t rows = m <= 384 ? m : 256;
  return {rows, std::min<std::int64_t>(n, 384)};
}

}  // namespace

void matmul(Compute compute, TensorView c, TensorView a, Transpose ta, TensorView b, Transpose tb, TensorView bias,
            Accumulate accumulate) {
  const bool a_transposed = ta == Transpose::yes, b_transposed = tb == Transpose::yes;
  const std::int64_t m = rows_of(c), n = columns_of(c), k = a_transposed ? rows_of(a) : columns_of(a);
  if (m == 0 || n == 0) return;
  const Tile tile = tile_of(m, n);
  const std::int64_t tiles_down = (m + tile.rows - 1) / tile.rows, tiles_across = (n + tile.columns - 1) / tile.columns;
  const DType inner = accumulator_of(a.dtype);
  const auto add_bias = bias.empty() ? nullptr : convert_kernel(compute.kernels, inner, bias.dtype, true);
  const auto deliver = convert_kernel(compute.kernels, c.dtype, inner, accumulate == Accumulate::yes);
  const bool direct = c.dtype == inner && accumulate == Accumulate::no;
  const auto c_bytes = static_cast<std::int64_t>(size_of(c.dtype));

  for_dtype(a.dtype, [&]<class T>() {
    using A = Acc<T>;
    compute.pool.parallel_for(tiles_down * tiles_across, [&](std::int64_t task) {
      const std::int64_t i = task % tiles_down * tile.rows, j = task / tiles_down * tile.columns;
      const std::int64_t rows = std::min(tile.rows, m - i), columns = std::min(tile.columns, n - j);
      const std::int64_t lda = a_transposed ? m : k, ldb = b_transposed ? k : n;
      const Operand<T> left{raw<T>(a) + (a_transposed ? i : i * lda), lda, a_transposed};
      const Operand<T> right{raw<T>(b) + (b_transposed ? j * ldb : j), ldb, b_transposed};
      // The product is whole before anything is added to it: in c itself, or in a tile the thread keeps.
      A* const product = direct ? raw<A>(c) + i * n + j : scratch<A>(Scratch::tile, tile.rows * tile.columns);
      const std::int64_t stride = direct ? n : tile.columns;
      tile_product(compute.kernels, product, stride, left, right, rows, columns, k);
      for (std::int64_t r = 0; r < rows && (add_bias || !direct); ++r) {
        A* const row = product + r * stride;
        if (add_bias) add_bias(row, bias.data + j * static_cast<std::int64_t>(size_of(bias.dtype)), columns);
        if (!direct) deliver(c.data + ((i + r) * n + j) * c_bytes, row, columns);
      }
    });
  });
}

}  // namespace terrace::cpu
