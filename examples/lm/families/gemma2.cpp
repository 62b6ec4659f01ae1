// Gemma 2 (Gemma Team 2024), as in Hugging Face's Gemma2ForCausalLM: every other block has a window, each half of a block has a
// norm before and a norm after it, and scores and logits are capped.
#include <terrace/examples/lm/families/gemma_like.h>

namespace terrace::lm {
namespace {

consteval Family gemma2() {
  auto file =
      gemma_file("gemma2", "Gemma2ForCausalLM", gemma_window("", 2),
                 R"({"num_key_value_heads": 4, "intermediate_size": 9216, "sliding_window": 4096})", "hidden_activation");
  file.heads_divide = true;
  auto family = gemma_like("gemma2", file, with_result_norms(llama_tensors(false)));
  family.scales = capped_scales(50, 30);
  return family;
}

}  // namespace

extern constexpr Family kGemma2 = checked(gemma2());

}  // namespace terrace::lm
