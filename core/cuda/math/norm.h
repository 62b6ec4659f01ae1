// Normalisation and its input gradient.
#pragma once

#include <terrace/core/cuda/kernels/norm.h>
#include <terrace/core/cuda/math/geometry.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct Norms {
  static void norm(const Launcher&, TensorView y, TensorView mean, TensorView rstd, TensorView x, TensorView gain,
                   TensorView bias, double eps, double offset, TensorView squares);
  static void norm_input_grad(const Launcher&, TensorView dx, TensorView dy, TensorView x, TensorView gain, TensorView mean,
                              TensorView rstd, Accumulate, double offset, TensorView products);
};

template <class Launcher>
void Norms<Launcher>::norm(const Launcher& launcher, TensorView y, TensorView mean, TensorView rstd, TensorView x,
                           TensorView gain, TensorView bias, double eps, double offset, TensorView squares) {
  with_type(y.dtype, [&]<class T>() {
    using A = Acc<T>;
    const std::int64_t c = columns_of(y);
    launcher.template run<NormRows<T>>(row_shape<NormRows<T>, T>(rows_of(y), c),
                                       NormArgs<T>{.y = data<T>(y),
                                                   .mean = data<A>(mean),
                                                   .rstd = data<A>(rstd),
                                                   .x = data<T>(x),
                                                   .gain = data<T>(gain),
                                                   .bias = data<T>(bias),
                                                   .squares = data<A>(squares),
                                                   .columns = c,
                                                   .eps = static_cast<A>(eps),
                                                   .offset = static_cast<A>(offset),
                                                   .whole = whole_words(c, {y, x, gain, bias})});
  });
}

template <class Launcher>
void Norms<Launcher>::norm_input_grad(const Launcher& launcher, TensorView dx, TensorView dy, TensorView x, TensorView gain,
                                      TensorView mean, TensorView rstd, Accumulate accumulate, double offset,
                                      TensorView products) {
  with_type(dx.dtype, [&]<class T>() {
    using A = Acc<T>;
    const std::int64_t c = columns_of(dx);
    launcher.template run<NormGradRows<T>>(row_shape<NormGradRows<T>, T>(rows_of(dx), c),
                                           NormGradArgs<T>{.dx = data<T>(dx),
                                                           .dy = data<T>(dy),
                                                           .x = data<T>(x),
                                                           .gain = data<T>(gain),
                                                           .mean = data<A>(mean),
                                                           .rstd = data<A>(rstd),
                                                           .products = data<A>(products),
                                                           .columns = c,
                                                           .offset = static_cast<A>(offset),
                                                           .accumulate = accumulate == Accumulate::yes,
                                                           .whole = whole_words(c, {dx, dy, x, gain})});
  });
}

}  // namespace terrace::cuda::ops
