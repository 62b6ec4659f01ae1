#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/score_rows.h>

namespace terrace::cuda::ops {

template void softmax_rows(const CudaLauncher&, const ScoreRows&, TensorView, double);
template void softmax_rows_grad(const CudaLauncher&, const ScoreRows&, TensorView, TensorView, double);

}  // namespace terrace::cuda::ops
