#include <terrace/core/cuda/kernels/attention_warpgroup_launch.h>
#include <terrace/core/cuda/math/attention/warpgroup_attention.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

void warpgroup_attention_grad(const CudaLauncher& launcher, AttentionShape shape, TensorView dqkv, TensorView dout,
                              TensorView out, TensorView lse, TensorView qkv) {
  attention_grad_of_warpgroups(launcher, shape, dqkv, dout, out, lse, qkv);
}

}  // namespace terrace::cuda::ops
