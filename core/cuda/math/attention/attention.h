// Attention: the kernels are chosen by shape (kernels/attention_launch.h).
#pragma once

#include <terrace/core/cuda/kernels/attention_launch.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct AttentionForward {
  static void attention(const Launcher&, AttentionShape, TensorView out, TensorView lse, TensorView qkv);
  static void attention_decode(const Launcher&, AttentionShape, TensorView out, TensorView q, TensorView k_cache,
                               TensorView v_cache, std::int64_t length);
};

template <class Launcher>
struct AttentionGradient {
  static void attention_grad(const Launcher&, AttentionShape, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                             TensorView qkv);
};

template <class Launcher>
void AttentionForward<Launcher>::attention(const Launcher& launcher, AttentionShape shape, TensorView out, TensorView lse,
                                           TensorView qkv) {
  cuda::attention(launcher, shape, out, lse, qkv);
}
template <class Launcher>
void AttentionGradient<Launcher>::attention_grad(const Launcher& launcher, AttentionShape shape, TensorView dqkv,
                                                 TensorView dout, TensorView out, TensorView lse, TensorView qkv) {
  cuda::attention_grad(launcher, shape, dqkv, dout, out, lse, qkv);
}
template <class Launcher>
void AttentionForward<Launcher>::attention_decode(const Launcher& launcher, AttentionShape shape, TensorView out, TensorView q,
                                                  TensorView k_cache, TensorView v_cache, std::int64_t length) {
  cuda::attention_decode(launcher, shape, out, q, k_cache, v_cache, length);
}

}  // namespace terrace::cuda::ops
