// Activations and their gradients.
#pragma once

#include <terrace/core/cuda/kernels/activation.h>
#include <terrace/core/cuda/math/geometry.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct Activations {
  static void activation(const Launcher&, Activation, TensorView y, TensorView x);
  static void activation_grad(const Launcher&, Activation, TensorView dx, TensorView dy, TensorView x);
};

// dy empty: the forward. y has the shape of the activation.
template <class Launcher>
void activate(const Launcher& launcher, Activation kind, TensorView out, TensorView dy, TensorView x, const TensorView& y) {
  with_type(x.dtype, [&]<class T>() {
    if (inputs_of(kind) == 1) {
      const GeluArgs<T> args{data<T>(out), data<T>(dy), data<T>(x), x.elements(), whole_words(kWidth<T>, {out, dy, x})};
      const auto run = [&]<class Kernel>() {
        launcher.template run<Kernel>(flat_shape<Kernel>(x.elements(), kWidth<T>), args);
      };
      if (kind == Activation::gelu_erf)
        run.template operator()<Gelu<T, Bend::gelu_erf>>();
      else
        run.template operator()<Gelu<T, Bend::gelu_tanh>>();
      return;
    }
    const std::int64_t f = columns_of(y);
    const GatedArgs<T> args{data<T>(out), data<T>(dy), data<T>(x), f, whole_words(f, {out, dy, x})};
    const auto run = [&]<class Kernel>() { launcher.template run<Kernel>(row_shape<Kernel, T>(rows_of(y), f), args); };
    if (kind == Activation::geglu_erf)
      run.template operator()<GatedRows<T, Bend::gelu_erf>>();
    else if (kind == Activation::geglu_tanh)
      run.template operator()<GatedRows<T, Bend::gelu_tanh>>();
    else
      run.template operator()<GatedRows<T, Bend::silu>>();
  });
}

template <class Launcher>
void Activations<Launcher>::activation(const Launcher& launcher, Activation kind, TensorView y, TensorView x) {
  activate(launcher, kind, y, {}, x, y);
}
template <class Launcher>
void Activations<Launcher>::activation_grad(const Launcher& launcher, Activation kind, TensorView dx, TensorView dy,
                                            TensorView x) {
  activate(launcher, kind, dx, dy, x, dy);
}

}  // namespace terrace::cuda::ops
