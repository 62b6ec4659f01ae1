// Qwen2 and Qwen2.5 (Yang et al. 2024), as in Hugging Face's Qwen2ForCausalLM: Llama with biases of q, k and v.
#include "llama_like.h"

namespace terrace::lm {

extern constexpr Family kQwen2 = checked(Family{
    .name = "qwen2",
    .norm = NormKind::rms,
    .query_key_norms = QueryKeyNorms::none,
    .positions = kLlamaPositions,
    .activation = Activation::swiglu,
    .grouped_heads = true,
    .usual_ffn = llama_ffn,
    .norm_eps = {.usual = 1e-6, .varies = true, .keys = {"/rms_norm_eps"}},
    .heads_keys = {"/num_attention_heads"},
    .file = llama_file("qwen2", "Qwen2ForCausalLM", "", {kSilu, FixedValue{"use_sliding_window", {"false"}}}),
    .matrices = MatrixOrder::out_in,
    .tensors = llama_tensors(true),
});

}  // namespace terrace::lm
