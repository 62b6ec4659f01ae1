#include <terrace/core/cuda/math/cross_entropy.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template void cross_entropy(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView, double);

}  // namespace terrace::cuda::ops
