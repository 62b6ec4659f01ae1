#include <terrace/core/cuda/math/attention/attention.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template void attention(const CudaLauncher&, AttentionShape, TensorView, TensorView, TensorView);
template void attention_decode(const CudaLauncher&, AttentionShape, TensorView, TensorView, TensorView, TensorView,
                               std::int64_t);

}  // namespace terrace::cuda::ops
