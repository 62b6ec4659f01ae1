#include <terrace/core/math/cpu/ops.h>

namespace terrace::cpu {
namespace {

// Partial sums of kSumBlock elements, computed by any thread, folded in ascending order.
template <class Kernel>
double sum_blocks(Compute compute, std::int64_t n, Kernel&& kernel) {
  const std::int64_t count = (n + kSumBlock - 1) / kSumBlock;
  double* const partial = scratch<double>(Scratch::operation, std::max<std::int64_t>(1, count));
  blocks(compute.pool, count, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) partial[i] = kernel(i * kSumBlock, std::min(kSumBlock, n - i * kSumBlock));
  });
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += partial[i];
  return total;
}

}  // namespace

void sum(Compute compute, TensorView out, TensorView x, Accumulate accumulate) {
  for_dtype(x.dtype, [&]<class T>() {
    const auto kernel = kernels_for<T>(compute.kernels).sum;
    const double total =
        sum_blocks(compute, x.elements(), [&](std::int64_t i, std::int64_t n) { return kernel(raw<T>(x) + i, n); });
    double& result = raw<double>(out)[0];
    result = accumulate == Accumulate::yes ? result + total : total;
  });
}

void sum_of_squares(Compute compute, TensorView out, TensorView x, std::int64_t first) {
  for_dtype(x.dtype, [&]<class T>() {
    const auto kernel = kernels_for<T>(compute.kernels).sum_of_squares;
    const auto end_of = [&](std::int64_t block) { return std::min(x.elements(), first + block * kSumBlock); };
    const std::int64_t count = square_blocks(x.elements(), first);
    blocks(compute.pool, count, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto from = i == 0 ? 0 : end_of(i - 1);
        raw<double>(out)[i] = kernel(raw<T>(x) + from, end_of(i) - from);
      }
    });
  });
}

}  // namespace terrace::cpu
