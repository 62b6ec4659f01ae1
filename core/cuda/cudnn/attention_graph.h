// Causal attention and its gradient as graphs of cuDNN's operations, in the pattern that its fused attention engines recognise
// (docs.nvidia.com/deeplearning/cudnn: "Flash attention fprop" and "bprop"). They read and write terrace's fused buffers
// directly.
//
// The gradient uses the form whose sums have one order: dq is one product with the stored gradient of the scores. The faster
// form adds parts into fp32 by atomics. Neither form is marked NONDETERMINISTIC by the library, so the graph must choose.
//
// Owner, threads: values. Errors: those of descriptors.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include <terrace/core/cuda/cudnn/graph.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda::cudnn {

// One call of the library: some sequences and some groups of heads of an attention in bf16.
struct AttentionKey {
  bool gradient = false;
  std::int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;  // of this call
  std::int64_t all_heads = 0, all_kv_heads = 0;                            // of the buffers that contain them
  friend auto operator<=>(const AttentionKey&, const AttentionKey&) = default;
};
// "[batch 2, seq 4096, 8 of 32 heads, 2 of 8 kv heads, dim 128] forward"
std::string to_string(const AttentionKey& key);

// The tensors and numbers that a call passes.
enum class Place : std::int64_t { q = 1, k, v, out, lse, dout, dq, dk, dv, inner, scale, hidden, one };

Graph attention_graph(const Library& library, const AttentionKey& key);

// The bf16 scores of the gradient, which an engine without atomics stores whole.
inline std::size_t score_bytes(const AttentionKey& key) {
  return static_cast<std::size_t>(key.batch * key.heads * key.seq * key.seq) * 2;
}
// Δ, one fp32 per query of the gradient: scratch from the caller, beside the plan's workspace.
inline std::size_t inner_bytes(const AttentionKey& key) {
  return key.gradient ? static_cast<std::size_t>(key.batch * key.heads * key.seq) * sizeof(float) : 0;
}

}  // namespace terrace::cuda::cudnn
