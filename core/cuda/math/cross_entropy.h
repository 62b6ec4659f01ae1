// The loss.
#pragma once

#include <terrace/core/cuda/kernels/cross_entropy.h>
#include <terrace/core/cuda/math/geometry.h>
#include <terrace/core/cuda/math/launcher.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct Losses {
  static void cross_entropy(const Launcher&, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                            double scale);
  static void log_sum_exp(const Launcher&, TensorView lse, MatrixView logits);
  static void merge_log_sums(const Launcher&, TensorView whole, TensorView parts, TensorView targets);
  static void cross_entropy_part(const Launcher&, TensorView loss, MatrixView dlogits, MatrixView logits, TensorView targets,
                                 TensorView lse, double scale);
};

template <class Launcher>
void Losses<Launcher>::cross_entropy(const Launcher& launcher, TensorView loss, MatrixView dlogits, MatrixView logits,
                                     TensorView targets, double scale) {
  with_type(logits.view.dtype, [&]<class T>() {
    using Kernel = CrossEntropyRows<T>;
    const std::int64_t v = columns_of(logits);
    launcher.template run<Kernel>(row_shape<Kernel, T>(rows_of(logits), v),
                                  CrossEntropyArgs<T>{.loss = data<double>(loss),
                                                      .dlogits = data<T>(dlogits.view),
                                                      .logits = data<T>(logits.view),
                                                      .targets = data<std::int32_t>(targets),
                                                      .fault = launcher.workspace.fault(Fault::target),
                                                      .columns = v,
                                                      .stride = logits.stride,
                                                      .scale = scale,
                                                      .whole = whole_words(logits.stride, {dlogits.view, logits.view})});
  });
}

template <class Launcher>
void Losses<Launcher>::log_sum_exp(const Launcher& launcher, TensorView lse, MatrixView logits) {
  with_type(logits.view.dtype, [&]<class T>() {
    using Kernel = LogSumExpRows<T>;
    const std::int64_t v = columns_of(logits);
    launcher.template run<Kernel>(
        row_shape<Kernel, T>(rows_of(logits), v),
        LogSumExpArgs<T>{data<Acc<T>>(lse), data<T>(logits.view), v, logits.stride, whole_words(logits.stride, {logits.view})});
  });
}

template <class Launcher>
void Losses<Launcher>::merge_log_sums(const Launcher& launcher, TensorView whole, TensorView parts, TensorView targets) {
  const auto merge = [&]<class A>(A) {
    launcher.template run<MergeLogSums<A>>(
        flat_shape<MergeLogSums<A>>(whole.elements(), 1),
        MergeLogSumsArgs<A>{data<A>(whole), data<A>(parts), data<std::int32_t>(targets), rows_of(parts), whole.elements()});
  };
  if (whole.dtype == DType::fp64) return merge(double{});
  merge(float{});
}

template <class Launcher>
void Losses<Launcher>::cross_entropy_part(const Launcher& launcher, TensorView loss, MatrixView dlogits, MatrixView logits,
                                          TensorView targets, TensorView lse, double scale) {
  with_type(logits.view.dtype, [&]<class T>() {
    using Kernel = CrossEntropyPartRows<T>;
    const std::int64_t v = columns_of(logits);
    launcher.template run<Kernel>(row_shape<Kernel, T>(rows_of(logits), v),
                                  CrossEntropyPartArgs<T>{.loss = data<double>(loss),
                                                          .dlogits = data<T>(dlogits.view),
                                                          .logits = data<T>(logits.view),
                                                          .targets = data<std::int32_t>(targets),
                                                          .lse = data<Acc<T>>(lse),
                                                          .fault = launcher.workspace.fault(Fault::target),
                                                          .columns = v,
                                                          .stride = logits.stride,
                                                          .scale = scale,
                                                          .whole = whole_words(logits.stride, {dlogits.view, logits.view})});
  });
}

}  // namespace terrace::cuda::ops
