// Causal attention and its gradient as graphs of cuDNN's operations, in the pattern that its fused attention engines know
// (docs.nvidia.com/deeplearning/cudnn: "Flash attention fprop" and "bprop"), on the project's fused buffers as they lie.
//
// The gradient is the one whose sums have one order: dq is one product of the written-down gradient of the scores, where the
// faster form adds parts into fp32 by atomics. Both forms say of themselves nothing of NONDETERMINISTIC: the graph decides.
//
// Owner, threads: values. Errors: the descriptors'.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include <terrace/core/cuda/cudnn/graph.h>
#include <terrace/core/math.h>

namespace terrace::cuda::cudnn {

// A call of the library: some sequences and some groups of heads of an attention in bf16.
struct AttentionKey {
  bool gradient = false;
  std::int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;  // of this call
  std::int64_t all_heads = 0, all_kv_heads = 0;                            // of the buffers that it lies in
  friend auto operator<=>(const AttentionKey&, const AttentionKey&) = default;
};
// "[batch 2, seq 4096, 8 of 32 heads, 2 of 8 kv heads, dim 128] forward"
std::string to_string(const AttentionKey& key);

// The tensors that a call names.
enum class Place : std::int64_t { q = 1, k, v, out, lse, dout, dq, dk, dv, inner, scale, hidden, one };

Graph attention_graph(const Library& library, const AttentionKey& key);

// bf16 scores of the gradient, which an engine without atomics writes down whole.
inline std::size_t score_bytes(const AttentionKey& key) {
  return static_cast<std::size_t>(key.batch * key.heads * key.seq * key.seq) * 2;
}
// Δ, one fp32 a query of the gradient: the caller's scratch beside the plan's workspace.
inline std::size_t inner_bytes(const AttentionKey& key) {
  return key.gradient ? static_cast<std::size_t>(key.batch * key.heads * key.seq) * sizeof(float) : 0;
}

}  // namespace terrace::cuda::cudnn
