#include <terrace/core/cuda/math/attention/attention.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template void attention_grad(const CudaLauncher&, AttentionShape, TensorView, TensorView, TensorView, TensorView, TensorView);

}  // namespace terrace::cuda::ops
