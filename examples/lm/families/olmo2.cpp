// OLMo 2 (OLMo Team 2024), as in Hugging Face's Olmo2ForCausalLM: Llama with norms after each half of a block instead of before
// it, and one norm over all heads of q and one of k.
#include <terrace/examples/lm/families/llama_like.h>

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

consteval Family olmo2() {
  auto family = llama_like(
      "olmo2", with_attention_bias(llama_file("olmo2", "Olmo2ForCausalLM", kNoWindow, R"({"intermediate_size": 11008})")),
      olmo2_tensors());
  family.query_key_norms = QueryKeyNorms::whole;
  return family;
}

}  // namespace

extern constexpr Family kOlmo2 = checked(olmo2());

}  // namespace terrace::lm
