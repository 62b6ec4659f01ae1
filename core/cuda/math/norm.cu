#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/norm.h>

namespace terrace::cuda::ops {

template void norm(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView, TensorView, TensorView, double, double,
                   TensorView);
template void norm_input_grad(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView, TensorView, TensorView,
                              Accumulate, double, TensorView);

}  // namespace terrace::cuda::ops
