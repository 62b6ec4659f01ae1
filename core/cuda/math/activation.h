// Activations and their gradients (ops.h).
#pragma once

#include <terrace/core/cuda/kernels/activation.h>
#include <terrace/core/cuda/math/geometry.h>
#include <terrace/core/cuda/math/ops.h>

namespace terrace::cuda::ops {

// dy empty: the forward. y is of the activation's shape.
template <class Launcher>
void activate(const Launcher& launcher, Activation kind, TensorView out, TensorView dy, TensorView x, const TensorView& y) {
  with_type(x.dtype, [&]<class T>() {
    if (kind == Activation::gelu_tanh) {
      launcher.template run<Gelu<T>>(
          flat_shape<Gelu<T>>(x.elements(), kWidth<T>),
          GeluArgs<T>{data<T>(out), data<T>(dy), data<T>(x), x.elements(), whole_words(kWidth<T>, {out, dy, x})});
      return;
    }
    const std::int64_t f = columns_of(y);
    const GatedArgs<T> args{data<T>(out), data<T>(dy), data<T>(x), f, whole_words(f, {out, dy, x})};
    const auto run = [&]<class Kernel>() { launcher.template run<Kernel>(row_shape<Kernel, T>(rows_of(y), f), args); };
    if (kind == Activation::geglu_tanh)
      run.template operator()<GatedRows<T, true>>();
    else
      run.template operator()<GatedRows<T, false>>();
  });
}

template <class Launcher>
void activation(const Launcher& launcher, Activation kind, TensorView y, TensorView x) {
  activate(launcher, kind, y, {}, x, y);
}
template <class Launcher>
void activation_grad(const Launcher& launcher, Activation kind, TensorView dx, TensorView dy, TensorView x) {
  activate(launcher, kind, dx, dy, x, dy);
}

}  // namespace terrace::cuda::ops
