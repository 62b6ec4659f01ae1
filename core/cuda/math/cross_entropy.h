// The loss (ops.h).
#pragma once

#include <terrace/core/cuda/kernels/cross_entropy.h>
#include <terrace/core/cuda/math/geometry.h>
#include <terrace/core/cuda/math/launcher.h>
#include <terrace/core/cuda/math/ops.h>

namespace terrace::cuda::ops {

template <class Launcher>
void cross_entropy(const Launcher& launcher, TensorView loss, TensorView dlogits, TensorView logits, TensorView targets,
                   double scale) {
  with_type(logits.dtype, [&]<class T>() {
    using Kernel = CrossEntropyRows<T>;
    const std::int64_t v = columns_of(logits);
    launcher.template run<Kernel>(row_shape<Kernel, T>(rows_of(logits), v),
                                  CrossEntropyArgs<T>{.loss = data<double>(loss),
                                                      .dlogits = data<T>(dlogits),
                                                      .logits = data<T>(logits),
                                                      .targets = data<std::int32_t>(targets),
                                                      .fault = launcher.workspace.fault(Fault::target),
                                                      .columns = v,
                                                      .scale = scale,
                                                      .whole = whole_words(v, {dlogits, logits})});
  });
}

}  // namespace terrace::cuda::ops
