// Attention (ops.h): the kernels are chosen by shape (kernels/attention_launch.h).
#pragma once

#include <terrace/core/cuda/kernels/attention_launch.h>
#include <terrace/core/cuda/math/ops.h>

namespace terrace::cuda::ops {

template <class Launcher>
void attention(const Launcher& launcher, AttentionShape shape, TensorView out, TensorView lse, TensorView qkv) {
  cuda::attention(launcher, shape, out, lse, qkv);
}
template <class Launcher>
void attention_grad(const Launcher& launcher, AttentionShape shape, TensorView dqkv, TensorView dout, TensorView out,
                    TensorView lse, TensorView qkv) {
  cuda::attention_grad(launcher, shape, dqkv, dout, out, lse, qkv);
}
template <class Launcher>
void attention_decode(const Launcher& launcher, AttentionShape shape, TensorView out, TensorView q, TensorView k_cache,
                      TensorView v_cache, std::int64_t length) {
  cuda::attention_decode(launcher, shape, out, q, k_cache, v_cache, length);
}

}  // namespace terrace::cuda::ops
