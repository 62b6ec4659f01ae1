// Softmaxes of rows in parts.
#pragma once

#include <terrace/core/cuda/kernels/score_rows.h>
#include <terrace/core/cuda/math/geometry.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct RowSoftmax {
  static void softmax_rows(const Launcher&, const ScoreRows&, TensorView scores, double scale);
  static void softmax_rows_grad(const Launcher&, const ScoreRows&, TensorView gradient, TensorView probabilities, double scale);
};

template <template <class> class Kernel, class Launcher>
void launch_score_rows(const Launcher& launcher, const ScoreRows& rows, TensorView scores, TensorView probabilities,
                       double scale) {
  with_type(scores.dtype, [&]<class T>() {
    launcher.template run<Kernel<T>>(
        {.blocks = {ceil_div(rows.count, std::int64_t{kScoreWarps}), rows.count_of_matrices, 1},
         .threads = Kernel<T>::kThreads},
        ScoreRowsArgs<T>{rows, data<T>(scores), data<T>(probabilities), static_cast<Acc<T>>(scale)});
  });
}

template <class Launcher>
void RowSoftmax<Launcher>::softmax_rows(const Launcher& launcher, const ScoreRows& rows, TensorView scores, double scale) {
  launch_score_rows<SoftmaxRows>(launcher, rows, scores, {}, scale);
}
template <class Launcher>
void RowSoftmax<Launcher>::softmax_rows_grad(const Launcher& launcher, const ScoreRows& rows, TensorView gradient,
                                             TensorView probabilities, double scale) {
  launch_score_rows<SoftmaxRowsGrad>(launcher, rows, gradient, probabilities, scale);
}

}  // namespace terrace::cuda::ops
