#include <stdexcept>
#include <string>

#include <terrace/core/math/cpu/ops.h>

namespace terrace::cpu {
namespace {

// Calls f(row) for all rows of logits, after checking the row's target.
template <class F>
void for_rows(Compute compute, const char* operation, const MatrixView& logits, TensorView targets, F&& f) {
  const std::int64_t columns = columns_of(logits);
  const auto* const target = raw<const std::int32_t>(targets);
  blocks(compute.pool, rows_of(logits), rows_a_task(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      if (target[r] < math::kPadding || target[r] >= columns) {
        throw std::out_of_range(std::string(operation) + ": target " + std::to_string(target[r]) + " of row " +
                                std::to_string(r) + " is outside a vocabulary of " + std::to_string(columns));
      }
      f(r);
    }
  });
}
template <class T>
T* row_or_null(const MatrixView& v, std::int64_t row) {
  return v.empty() ? nullptr : raw<T>(v.view) + row * v.stride;
}

}  // namespace

void cross_entropy(Compute compute, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets, double scale) {
  for_dtype(logits.view.dtype, [&]<class T>() {
    const auto kernel = kernels_for<T>(compute.kernels).cross_entropy_row;
    for_rows(compute, "cross_entropy", logits, targets, [&](std::int64_t r) {
      raw<double>(loss)[r] = kernel(row_or_null<T>(dlogits, r), row_or_null<T>(logits, r), columns_of(logits),
                                    raw<const std::int32_t>(targets)[r], scale);
    });
  });
}

void log_sum_exp(Compute compute, TensorView lse, MatrixView logits) {
  for_dtype(logits.view.dtype, [&]<class T>() {
    const auto kernel = kernels_for<T>(compute.kernels).log_sum_exp_row;
    const std::int64_t columns = columns_of(logits);
    blocks(compute.pool, rows_of(logits), rows_a_task(columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) raw<Acc<T>>(lse)[r] = kernel(raw<T>(logits.view) + r * logits.stride, columns);
    });
  });
}

void merge_log_sums(Compute compute, TensorView whole, TensorView parts, TensorView targets) {
  const auto merge = [&]<class A>(const SoftmaxOf<A>& kernels) {
    const std::int64_t n = whole.elements();
    blocks(compute.pool, n, rows_a_task(rows_of(parts)), [&](std::int64_t begin, std::int64_t end) {
      kernels.merge_log_sums(raw<A>(whole) + begin, raw<A>(parts) + begin, rows_of(parts), n,
                             raw<const std::int32_t>(targets) + begin, end - begin);
    });
  };
  if (whole.dtype == DType::fp64) return merge(softmax_for<double>(compute.kernels));
  merge(softmax_for<float>(compute.kernels));
}

void cross_entropy_part(Compute compute, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                        TensorView lse, double scale) {
  for_dtype(logits.view.dtype, [&]<class T>() {
    const auto kernel = kernels_for<T>(compute.kernels).cross_entropy_part_row;
    for_rows(compute, "cross_entropy_part", logits, targets, [&](std::int64_t r) {
      raw<double>(loss)[r] = kernel(row_or_null<T>(dlogits, r), row_or_null<T>(logits, r), columns_of(logits),
                                    raw<const std::int32_t>(targets)[r], raw<Acc<T>>(lse)[r], scale);
    });
  });
}

}  // namespace terrace::cpu
