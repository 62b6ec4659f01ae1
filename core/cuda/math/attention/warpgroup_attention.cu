#include <terrace/core/cuda/kernels/attention_warpgroup_launch.h>
#include <terrace/core/cuda/math/attention/warpgroup_attention.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

bool has_warpgroup_attention() { return true; }
void warpgroup_attention(const CudaLauncher& launcher, AttentionShape shape, TensorView out, TensorView lse, TensorView qkv) {
  attention_of_warpgroups(launcher, shape, out, lse, qkv);
}

}  // namespace terrace::cuda::ops
