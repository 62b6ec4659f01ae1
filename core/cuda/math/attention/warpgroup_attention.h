// Attention by warpgroups, which GPUs of compute capability 9.0 have. It is defined in warpgroup_attention.cu and
// warpgroup_attention_grad.cu, built only for 9.0a, or, if the build is for other GPUs, in no_warpgroup_attention.cpp.
//
// Threads: the stream's issuing thread. Both functions only issue work.
#pragma once

#include <terrace/core/cuda/math/launcher.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda::ops {

// Whether this build has them. They run only on compute capability 9.0.
bool has_warpgroup_attention();
// Supports the calls of warpgroups_serve() (attention_choice.h); std::logic_error for all others.
void warpgroup_attention(const CudaLauncher&, AttentionShape, TensorView out, TensorView lse, TensorView qkv);
void warpgroup_attention_grad(const CudaLauncher&, AttentionShape, TensorView dqkv, TensorView dout, TensorView out,
                              TensorView lse, TensorView qkv);

}  // namespace terrace::cuda::ops
