// Qwen3 (Yang et al. 2025), as in Hugging Face's Qwen3ForCausalLM: Llama with a separate head width, and norms of q and k.
#include <terrace/examples/lm/families/llama_like.h>

namespace terrace::lm {
namespace {

consteval ModelFile qwen3_file() {
  auto file = with_attention_bias(
      llama_file("qwen3", "Qwen3ForCausalLM", window_if_used(Windowed::later, "max_window_layers", 28, true),
                 R"({"num_key_value_heads": 32, "intermediate_size": 22016, "sliding_window": 4096})"));
  file.usual_head_dim = 128;
  return file;
}

consteval Family qwen3() {
  auto family = llama_like("qwen3", qwen3_file(), with_query_key_norms(llama_tensors(false)));
  family.query_key_norms = QueryKeyNorms::heads;
  family.norm_eps.usual = 1e-6;
  return family;
}

}  // namespace

extern constexpr Family kQwen3 = checked(qwen3());

}  // namespace terrace::lm
