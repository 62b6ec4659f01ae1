#include <terrace/core/cuda/math/cross_entropy.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template void cross_entropy(const CudaLauncher&, TensorView, MatrixView, MatrixView, TensorView, double);
template void log_sum_exp(const CudaLauncher&, TensorView, MatrixView);
template void merge_log_sums(const CudaLauncher&, TensorView, TensorView, TensorView);
template void cross_entropy_part(const CudaLauncher&, TensorView, MatrixView, MatrixView, TensorView, TensorView, double);

}  // namespace terrace::cuda::ops
