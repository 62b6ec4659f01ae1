#include <stdexcept>

#include <terrace/core/cuda/math/warpgroup_attention.h>

namespace terrace::cuda::ops {

bool has_warpgroup_attention() { return false; }
void warpgroup_attention(const CudaLauncher&, AttentionShape, TensorView, TensorView, TensorView) {
  throw std::logic_error("attention: this build is for GPUs without warpgroups' products");
}

}  // namespace terrace::cuda::ops
