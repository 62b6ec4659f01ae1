// A block of attention; its kernels and their launch are in kernels/attention_block.h.
#pragma once

#include <terrace/core/cuda/kernels/attention_block.h>

namespace terrace::cuda::ops {

template <class Launcher>
struct AttentionBlocks {
  static void attention_block(const Launcher&, const AttentionBlock&, TensorView out, TensorView lse, TensorView q,
                              TensorView kv, Accumulate);
  static void attention_block_grad(const Launcher&, const AttentionBlock&, TensorView dq, TensorView dkv, TensorView dout,
                                   TensorView out, TensorView lse, TensorView q, TensorView kv, Accumulate to_dq,
                                   Accumulate to_dkv);
};

template <class Launcher>
void AttentionBlocks<Launcher>::attention_block(const Launcher& launcher, const AttentionBlock& block, TensorView out,
                                                TensorView lse, TensorView q, TensorView kv, Accumulate accumulate) {
  cuda::attention_block(launcher, block, out, lse, q, kv, accumulate);
}
template <class Launcher>
void AttentionBlocks<Launcher>::attention_block_grad(const Launcher& launcher, const AttentionBlock& block, TensorView dq,
                                                     TensorView dkv, TensorView dout, TensorView out, TensorView lse,
                                                     TensorView q, TensorView kv, Accumulate to_dq, Accumulate to_dkv) {
  cuda::attention_block_grad(launcher, block, dq, dkv, dout, out, lse, q, kv, to_dq, to_dkv);
}

}  // namespace terrace::cuda::ops
