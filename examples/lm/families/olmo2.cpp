// OLMo 2 (OLMo Team 2024), as in Hugging Face's Olmo2ForCausalLM: Llama with norms behind each half of a block instead of
// before it, and norms of all heads of q and k together.
#include "llama_like.h"

namespace terrace::lm {
namespace {

consteval TensorNames olmo2_tensors() {
  auto names = with_query_key_norms(llama_tensors(false));
  names.attention_norm = "";
  names.mlp_norm = "";
  names.attention_result_norm = "post_attention_layernorm";
  names.mlp_result_norm = "post_feedforward_layernorm";
  return names;
}

}  // namespace

extern constexpr Family kOlmo2 = checked(Family{
    .name = "olmo2",
    .norm = NormKind::rms,
    .query_key_norms = QueryKeyNorms::whole,
    .positions = kLlamaPositions,
    .activation = Activation::swiglu,
    .grouped_heads = true,
    .usual_ffn = llama_ffn,
    .norm_eps = {.usual = 1e-5, .varies = true, .keys = {"/rms_norm_eps"}},
    .heads_keys = {"/num_attention_heads"},
    .file = llama_file("olmo2", "Olmo2ForCausalLM", "", {kSilu, FixedValue{"attention_bias", {"false"}}}),
    .matrices = MatrixOrder::out_in,
    .tensors = olmo2_tensors(),
});

}  // namespace terrace::lm
