#include <stdexcept>
#include <string>

#include <terrace/core/cpu/ops.h>

namespace terrace::cpu {

void cross_entropy(Compute compute, TensorView loss, TensorView dlogits, TensorView logits, TensorView targets, double scale) {
  for_dtype(logits.dtype, [&]<class T>() {
    const auto kernel = kernels_for<T>(compute.kernels).cross_entropy_row;
    const std::int64_t vocabulary = columns_of(logits);
    const auto* const target = raw<const std::int32_t>(targets);
    auto* const losses = raw<double>(loss);
    blocks(compute.pool, rows_of(logits), rows_a_task(vocabulary), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        if (target[r] < -1 || target[r] >= vocabulary) {
          throw std::out_of_range("cross_entropy: target " + std::to_string(target[r]) + " of row " + std::to_string(r) +
                                  " is outside a vocabulary of " + std::to_string(vocabulary));
        }
        losses[r] = kernel(dlogits.empty() ? nullptr : raw<T>(dlogits) + r * vocabulary, raw<T>(logits) + r * vocabulary,
                           vocabulary, target[r], scale);
      }
    });
  });
}

}  // namespace terrace::cpu
