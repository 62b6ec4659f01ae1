#include <cstring>

#include <terrace/core/math/cpu/ops.h>

namespace terrace::cpu {
namespace {
constexpr std::int64_t kElementwiseBlock = 32768;  // elements per task
}

void add(Compute compute, TensorView y, TensorView x, TensorView r) {
  for_dtype(y.dtype, [&]<class T>() {
    const auto& kernels = kernels_for<T>(compute.kernels);
    blocks(compute.pool, y.elements(), kElementwiseBlock, [&](std::int64_t begin, std::int64_t end) {
      kernels.add(raw<T>(y) + begin, raw<T>(x) + begin, raw<T>(r) + begin, end - begin);
    });
  });
}

void scale(Compute compute, TensorView y, TensorView x, TensorView gain, Accumulate accumulate) {
  for_dtype(y.dtype, [&]<class T>() {
    const auto kernel = kernels_for<T>(compute.kernels).scale;
    const std::int64_t c = columns_of(y);
    blocks(compute.pool, rows_of(y), rows_a_task(c), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n)
        kernel(raw<T>(y) + n * c, raw<T>(x) + n * c, raw<T>(gain), c, accumulate == Accumulate::yes);
    });
  });
}

void multiply(Compute compute, TensorView y, TensorView x, double factor) {
  for_dtype(y.dtype, [&]<class T>() {
    blocks(compute.pool, y.elements(), kElementwiseBlock, [&](std::int64_t begin, std::int64_t end) {
      kernels_for<T>(compute.kernels).multiply(raw<T>(y) + begin, raw<T>(x) + begin, end - begin, static_cast<Acc<T>>(factor));
    });
  });
}

void soft_cap(Compute compute, TensorView y, TensorView x, double cap) {
  for_dtype(y.dtype, [&]<class T>() {
    blocks(compute.pool, y.elements(), kElementwiseBlock, [&](std::int64_t begin, std::int64_t end) {
      kernels_for<T>(compute.kernels)
          .soft_cap(raw<T>(y) + begin, raw<T>(x) + begin, end - begin, Acc<T>{1}, static_cast<Acc<T>>(cap));
    });
  });
}

void soft_cap_grad(Compute compute, TensorView dx, TensorView dy, TensorView y, double cap) {
  for_dtype(y.dtype, [&]<class T>() {
    blocks(compute.pool, y.elements(), kElementwiseBlock, [&](std::int64_t begin, std::int64_t end) {
      kernels_for<T>(compute.kernels)
          .soft_cap_grad(raw<T>(dx) + begin, raw<T>(dy) + begin, raw<T>(y) + begin, end - begin, Acc<T>{1},
                         static_cast<Acc<T>>(cap));
    });
  });
}

void convert(Compute compute, TensorView y, TensorView x, Accumulate accumulate) {
  const auto kernel = convert_kernel(compute.kernels, y.dtype, x.dtype, accumulate == Accumulate::yes);
  const auto to = static_cast<std::int64_t>(size_of(y.dtype)), from = static_cast<std::int64_t>(size_of(x.dtype));
  blocks(compute.pool, y.elements(), kElementwiseBlock,
         [&](std::int64_t begin, std::int64_t end) { kernel(y.data + begin * to, x.data + begin * from, end - begin); });
}

void columns(Compute compute, TensorView y, std::int64_t first_y, TensorView x, std::int64_t first_x, std::int64_t count,
             Accumulate accumulate) {
  const auto kernel = convert_kernel(compute.kernels, y.dtype, x.dtype, accumulate == Accumulate::yes);
  const auto size = static_cast<std::int64_t>(size_of(y.dtype)), to = y.shape[1], from = x.shape[1];
  blocks(compute.pool, y.shape[0], rows_a_task(count), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      kernel(y.data + (n * to + first_y) * size, x.data + (n * from + first_x) * size, count);
  });
}

void zero(Compute compute, TensorView y) {
  blocks(compute.pool, static_cast<std::int64_t>(y.bytes()), kElementwiseBlock * 4,
         [&](std::int64_t begin, std::int64_t end) { std::memset(y.data + begin, 0, static_cast<std::size_t>(end - begin)); });
}

}  // namespace terrace::cpu
