#include <terrace/core/cuda/math/activation.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template void activation(const CudaLauncher&, Activation, TensorView, TensorView);
template void activation_grad(const CudaLauncher&, Activation, TensorView, TensorView, TensorView);

}  // namespace terrace::cuda::ops
