// Qwen2 and Qwen2.5 (Yang et al. 2024), as in Hugging Face's Qwen2ForCausalLM: Llama with biases of q, k and v.
#include "llama_like.h"

namespace terrace::lm {
namespace {

consteval Family qwen2() {
  auto family =
      llama_like("qwen2", llama_file("qwen2", "Qwen2ForCausalLM", "", {kSilu, FixedValue{"use_sliding_window", {"false"}}}),
                 llama_tensors(true));
  family.norm_eps.usual = 1e-6;
  return family;
}

}  // namespace

extern constexpr Family kQwen2 = checked(qwen2());

}  // namespace terrace::lm
