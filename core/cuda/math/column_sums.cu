#include <terrace/core/cuda/math/column_sums.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template void bias_grad(const CudaLauncher&, TensorView, TensorView, Accumulate);
template void norm_weight_grad(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView, TensorView, TensorView,
                               Accumulate);

}  // namespace terrace::cuda::ops
