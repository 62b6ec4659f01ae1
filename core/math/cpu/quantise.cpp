// Rounds matrices to numbers of 8 bits (core/math/float8.h).
#include <vector>

#include <terrace/core/math/cpu/ops.h>
#include <terrace/core/math/float8.h>

namespace terrace::cpu {
namespace {

constexpr std::int64_t kRows = 64;  // of a task

// Calls use(row, its elements in fp32) for each of the rows.
template <class Use>
void each_row(Compute compute, const MatrixView& x, std::int64_t first, std::int64_t count, Use&& use) {
  const auto widen = convert_kernel(compute.kernels, DType::fp32, x.view.dtype, false);
  const std::int64_t columns = columns_of(x), bytes = x.stride * static_cast<std::int64_t>(size_of(x.view.dtype));
  auto* const wide = scratch<float>(Scratch::operand_a, columns);
  for (std::int64_t r = first; r < first + count; ++r) {
    widen(wide, x.view.data + r * bytes, columns);
    use(r, wide);
  }
}

std::uint32_t greatest_magnitude(Compute compute, const MatrixView& x) {
  std::vector<std::uint32_t> of_tasks(static_cast<std::size_t>((rows_of(x) + kRows - 1) / kRows));
  blocks(compute.pool, rows_of(x), kRows, [&](std::int64_t begin, std::int64_t end) {
    std::uint32_t greatest = 0;
    each_row(compute, x, begin, end - begin, [&](std::int64_t, const float* row) {
      for (std::int64_t i = 0; i < columns_of(x); ++i)
        greatest = std::max(greatest, std::bit_cast<std::uint32_t>(row[i]) & 0x7fffffffU);
    });
    of_tasks[static_cast<std::size_t>(begin / kRows)] = greatest;
  });
  return of_tasks.empty() ? 0 : *std::ranges::max_element(of_tasks);
}

}  // namespace

void quantise(Compute compute, TensorView codes, TensorView turned, TensorView scale, MatrixView x) {
  const auto format = math::float8_format(codes.empty() ? turned.dtype : codes.dtype);
  const auto s = math::float8_scale(greatest_magnitude(compute, x), format);
  *scale.as<float>() = s.scale;
  auto *const to = raw<std::uint8_t>(codes), *const to_turned = raw<std::uint8_t>(turned);
  const std::int64_t rows = rows_of(x), columns = columns_of(x), stride = math::float8_columns(columns),
                     turned_stride = math::float8_columns(rows);
  blocks(compute.pool, rows, kRows, [&](std::int64_t begin, std::int64_t end) {
    // A task's rows are columns of the turned codes: the last task also writes the zeros behind.
    const std::int64_t width = (end == rows ? turned_stride : end) - begin;
    auto* const tile = to_turned ? scratch<std::uint8_t>(Scratch::operand_b, columns * width) : nullptr;
    if (tile) std::fill_n(tile, columns * width, std::uint8_t{0});
    each_row(compute, x, begin, end - begin, [&](std::int64_t r, const float* row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const auto code = math::float8_code(row[i], s, format);
        if (to) to[r * stride + i] = code;
        if (tile) tile[i * width + r - begin] = code;
      }
      if (to) std::fill(to + r * stride + columns, to + (r + 1) * stride, std::uint8_t{0});
    });
    for (std::int64_t i = 0; tile && i < columns; ++i)
      std::copy_n(tile + i * width, width, to_turned + i * turned_stride + begin);
  });
}

}  // namespace terrace::cpu
