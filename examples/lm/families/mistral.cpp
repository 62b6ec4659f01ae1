// Mistral (Jiang et al. 2023), as in Hugging Face's MistralForCausalLM: Llama with a sliding window.
#include "llama_like.h"

namespace terrace::lm {

extern constexpr Family kMistral = checked(Family{
    .name = "mistral",
    .norm = NormKind::rms,
    .query_key_norms = QueryKeyNorms::none,
    .positions = kLlamaPositions,
    .activation = Activation::swiglu,
    .grouped_heads = true,
    .usual_ffn = llama_ffn,
    .norm_eps = {.usual = 1e-5, .varies = true, .keys = {"/rms_norm_eps"}},
    .heads_keys = {"/num_attention_heads"},
    .file = llama_file("mistral", "MistralForCausalLM", "sliding_window", {kSilu}),
    .matrices = MatrixOrder::out_in,
    .tensors = llama_tensors(false),
});

}  // namespace terrace::lm
