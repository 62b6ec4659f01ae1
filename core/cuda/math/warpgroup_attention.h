// Attention by warpgroups, which GPUs of compute capability 9.0 have: in warpgroup_attention.cu and
// warpgroup_attention_grad.cu, made for 9.0a alone, or, where the build is for other GPUs, in no_warpgroup_attention.cpp.
//
// Threads: the stream's issuing thread. It only issues.
#pragma once

#include <terrace/core/cuda/math/launcher.h>
#include <terrace/core/math.h>

namespace terrace::cuda::ops {

// Are they in this build? They run on compute capability 9.0 only.
bool has_warpgroup_attention();
// What warpgroups_serve() (attention_choice.h); std::logic_error for everything else.
void warpgroup_attention(const CudaLauncher&, AttentionShape, TensorView out, TensorView lse, TensorView qkv);
void warpgroup_attention_grad(const CudaLauncher&, AttentionShape, TensorView dqkv, TensorView dout, TensorView out,
                              TensorView lse, TensorView qkv);

}  // namespace terrace::cuda::ops
