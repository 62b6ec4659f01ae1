#include <terrace/core/math/cpu/ops.h>

namespace terrace::cpu {
namespace {

// Writes or adds finished column sums to their slice of a gradient of any dtype.
void deliver(Compute compute, TensorView to, std::int64_t first, const void* sums, DType sums_dtype, std::int64_t n,
             Accumulate accumulate) {
  convert_kernel(compute.kernels, to.dtype, sums_dtype, accumulate == Accumulate::yes)(
      to.data + first * static_cast<std::int64_t>(size_of(to.dtype)), sums, n);
}

}  // namespace

void norm(Compute compute, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain, TensorView bias,
          double eps, double offset, TensorView squares) {
  for_dtype(y.dtype, [&]<class T>() {
    using A = Acc<T>;
    const auto kernel = kernels_for<T>(compute.kernels).norm_row;
    const std::int64_t c = columns_of(y);
    blocks(compute.pool, rows_of(y), rows_a_task(c), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        kernel(raw<T>(y) + n * c, mean.empty() ? nullptr : raw<A>(mean) + n, raw<A>(rstd) + n, raw<T>(x) + n * c, raw<T>(gain),
               raw<T>(bias), c, eps, static_cast<A>(offset), squares.empty() ? nullptr : raw<A>(squares) + n);
      }
    });
  });
}

void norm_input_grad(Compute compute, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean,
                     TensorView rstd, Accumulate accumulate, double offset, TensorView products) {
  for_dtype(dx.dtype, [&]<class T>() {
    using A = Acc<T>;
    const auto kernel = kernels_for<T>(compute.kernels).norm_input_grad_row;
    const std::int64_t c = columns_of(dx);
    blocks(compute.pool, rows_of(dx), rows_a_task(c), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        kernel(raw<T>(dx) + n * c, raw<T>(dy) + n * c, raw<T>(x) + n * c, raw<T>(gain),
               mean.empty() ? nullptr : raw<A>(mean) + n, raw<A>(rstd)[n], c, accumulate == Accumulate::yes,
               static_cast<A>(offset), products.empty() ? nullptr : raw<A>(products) + n);
      }
    });
  });
}

void row_products(Compute compute, TensorView sums, TensorView a, TensorView b, TensorView gain, double factor, double offset) {
  for_dtype(a.dtype, [&]<class T>() {
    using A = Acc<T>;
    const auto kernel = kernels_for<T>(compute.kernels).row_product;
    const std::int64_t c = columns_of(a);
    blocks(compute.pool, rows_of(a), rows_a_task(c), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n)
        raw<A>(sums)[n] =
            static_cast<A>(factor) * kernel(raw<T>(a) + n * c, raw<T>(b) + n * c, raw<T>(gain), c, static_cast<A>(offset));
    });
  });
}

void norm_weight_grad(Compute compute, TensorView dgain, TensorView dbias, TensorView dy, TensorView x, TensorView mean,
                      TensorView rstd, Accumulate accumulate) {
  for_dtype(dy.dtype, [&]<class T>() {
    using A = Acc<T>;
    const auto kernel = kernels_for<T>(compute.kernels).norm_weight_grad;
    const std::int64_t c = columns_of(dy), rows = rows_of(dy);
    blocks(compute.pool, c, kColumns, [&](std::int64_t begin, std::int64_t end) {
      A gains[kColumns], biases[kColumns];
      const std::int64_t width = end - begin;
      kernel(gains, dbias.empty() ? nullptr : biases, raw<T>(dy) + begin, raw<T>(x) + begin, raw<A>(mean), raw<A>(rstd), rows,
             width, c);
      deliver(compute, dgain, begin, gains, accumulator_of(dy.dtype), width, accumulate);
      if (!dbias.empty()) deliver(compute, dbias, begin, biases, accumulator_of(dy.dtype), width, accumulate);
    });
  });
}

void bias_grad(Compute compute, TensorView db, TensorView dy, Accumulate accumulate) {
  for_dtype(dy.dtype, [&]<class T>() {
    const auto kernel = kernels_for<T>(compute.kernels).column_sums;
    const std::int64_t c = columns_of(dy), rows = rows_of(dy);
    blocks(compute.pool, c, kColumns, [&](std::int64_t begin, std::int64_t end) {
      Acc<T> sums[kColumns];
      kernel(sums, raw<T>(dy) + begin, rows, end - begin, c);
      deliver(compute, db, begin, sums, accumulator_of(dy.dtype), end - begin, accumulate);
    });
  });
}

}  // namespace terrace::cpu
