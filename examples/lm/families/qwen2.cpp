// Qwen2 and Qwen2.5 (Yang et al. 2024), as in Hugging Face's Qwen2ForCausalLM: Llama with biases of q, k and v.
#include <terrace/examples/lm/families/llama_like.h>

namespace terrace::lm {
namespace {

consteval Family qwen2() {
  auto file = llama_file("qwen2", "Qwen2ForCausalLM", window_if_used(Windowed::later, "max_window_layers", 28, true),
                         R"({"num_key_value_heads": 32, "intermediate_size": 22016, "sliding_window": 4096})");
  file.unused = {"attention_bias"};  // only some files have it, and it is true for all models
  auto family = llama_like("qwen2", file, llama_tensors(true));
  family.norm_eps.usual = 1e-6;
  return family;
}

}  // namespace

extern constexpr Family kQwen2 = checked(qwen2());

}  // namespace terrace::lm
