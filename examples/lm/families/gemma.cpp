// Gemma (Gemma Team 2024), as in Hugging Face's GemmaForCausalLM.
#include <terrace/examples/lm/families/gemma_like.h>

namespace terrace::lm {

extern constexpr Family kGemma = checked(gemma_like(
    "gemma",
    gemma_file("gemma", "GemmaForCausalLM", kNoWindow, R"({"num_key_value_heads": 16, "intermediate_size": 24576})", ""),
    llama_tensors(false)));

}  // namespace terrace::lm
