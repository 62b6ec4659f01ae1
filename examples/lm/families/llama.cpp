// Llama (Touvron et al. 2023), as in Hugging Face's LlamaForCausalLM.
#include "llama_like.h"

namespace terrace::lm {

extern constexpr Family kLlama = checked(Family{
    .name = "llama",
    .norm = NormKind::rms,
    .query_key_norms = QueryKeyNorms::none,
    .positions = kLlamaPositions,
    .activation = Activation::swiglu,
    .grouped_heads = true,
    .usual_ffn = llama_ffn,
    .norm_eps = {.usual = 1e-5, .varies = true, .keys = {"/rms_norm_eps"}},
    .heads_keys = {"/num_attention_heads"},
    .file = llama_file("llama", "LlamaForCausalLM", "",
                       {kSilu, FixedValue{"attention_bias", {"false"}}, FixedValue{"mlp_bias", {"false"}},
                        FixedValue{"pretraining_tp", {"1"}}}),
    .matrices = MatrixOrder::out_in,
    .tensors = llama_tensors(false),
});

}  // namespace terrace::lm
