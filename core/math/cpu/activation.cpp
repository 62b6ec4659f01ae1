#include <terrace/core/math/cpu/ops.h>

namespace terrace::cpu {
namespace {
constexpr std::int64_t kActivationBlock = 16384;  // elements per task
}

void activation(Compute compute, Activation kind, TensorView y, TensorView x) {
  for_dtype(y.dtype, [&]<class T>() {
    const auto& kernels = kernels_for<T>(compute.kernels);
    T* const out = raw<T>(y);
    const T* const in = raw<T>(x);
    if (inputs_of(kind) == 1) {
      const auto gelu = kind == Activation::gelu_tanh ? kernels.gelu : kernels.gelu_erf;
      blocks(compute.pool, y.elements(), kActivationBlock,
             [&](std::int64_t begin, std::int64_t end) { gelu(out + begin, in + begin, end - begin); });
      return;
    }
    const auto gated = kind == Activation::swiglu       ? kernels.swiglu
                       : kind == Activation::geglu_tanh ? kernels.geglu
                                                        : kernels.geglu_erf;
    const std::int64_t f = columns_of(y);
    blocks(compute.pool, rows_of(y), rows_a_task(f), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) gated(out + n * f, in + 2 * n * f, in + (2 * n + 1) * f, f);
    });
  });
}

void activation_grad(Compute compute, Activation kind, TensorView dx, TensorView dy, TensorView x) {
  for_dtype(dx.dtype, [&]<class T>() {
    const auto& kernels = kernels_for<T>(compute.kernels);
    T* const out = raw<T>(dx);
    const T *const d = raw<T>(dy), *const in = raw<T>(x);
    if (inputs_of(kind) == 1) {
      const auto gelu_grad = kind == Activation::gelu_tanh ? kernels.gelu_grad : kernels.gelu_erf_grad;
      blocks(compute.pool, dx.elements(), kActivationBlock,
             [&](std::int64_t begin, std::int64_t end) { gelu_grad(out + begin, d + begin, in + begin, end - begin); });
      return;
    }
    const auto gated = kind == Activation::swiglu       ? kernels.swiglu_grad
                       : kind == Activation::geglu_tanh ? kernels.geglu_grad
                                                        : kernels.geglu_erf_grad;
    const std::int64_t f = columns_of(dy);
    blocks(compute.pool, rows_of(dy), rows_a_task(f), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        gated(out + 2 * n * f, out + (2 * n + 1) * f, d + n * f, in + 2 * n * f, in + (2 * n + 1) * f, f);
      }
    });
  });
}

}  // namespace terrace::cpu
