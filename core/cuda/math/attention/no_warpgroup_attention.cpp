#include <stdexcept>

#include <terrace/core/cuda/math/attention/warpgroup_attention.h>

namespace terrace::cuda::ops {
namespace {

[[noreturn]] void refuse() { throw std::logic_error("attention: this build is for GPUs without warpgroups' products"); }

}  // namespace

bool has_warpgroup_attention() { return false; }
void warpgroup_attention(const CudaLauncher&, AttentionShape, TensorView, TensorView, TensorView) { refuse(); }
void warpgroup_attention_grad(const CudaLauncher&, AttentionShape, TensorView, TensorView, TensorView, TensorView, TensorView) {
  refuse();
}

}  // namespace terrace::cuda::ops
