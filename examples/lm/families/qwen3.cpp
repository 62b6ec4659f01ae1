// Qwen3 (Yang et al. 2025), as in Hugging Face's Qwen3ForCausalLM: Llama with heads of a width of their own, and norms of q and
// k.
#include "llama_like.h"

namespace terrace::lm {
namespace {

consteval ModelFile qwen3_file() {
  auto file = llama_file("qwen3", "Qwen3ForCausalLM", "",
                         {kSilu, FixedValue{"use_sliding_window", {"false"}}, FixedValue{"attention_bias", {"false"}}});
  file.usual_head_dim = 128;
  return file;
}

}  // namespace

extern constexpr Family kQwen3 = checked(Family{
    .name = "qwen3",
    .norm = NormKind::rms,
    .query_key_norms = QueryKeyNorms::heads,
    .positions = kLlamaPositions,
    .activation = Activation::swiglu,
    .grouped_heads = true,
    .usual_ffn = llama_ffn,
    .norm_eps = {.usual = 1e-6, .varies = true, .keys = {"/rms_norm_eps"}},
    .heads_keys = {"/num_attention_heads"},
    .file = qwen3_file(),
    .matrices = MatrixOrder::out_in,
    .tensors = with_query_key_norms(llama_tensors(false)),
});

}  // namespace terrace::lm
