#include <terrace/core/cuda/math/attention/attention_block.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template void attention_block(const CudaLauncher&, const AttentionBlock&, TensorView, TensorView, TensorView, TensorView,
                              Accumulate);
template void attention_block_grad(const CudaLauncher&, const AttentionBlock&, TensorView, TensorView, TensorView, TensorView,
                                   TensorView, TensorView, TensorView, Accumulate, Accumulate);

}  // namespace terrace::cuda::ops
