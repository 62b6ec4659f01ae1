// Gemma (Gemma Team 2024), as in Hugging Face's GemmaForCausalLM.
#include "gemma_like.h"

namespace terrace::lm {

extern constexpr Family kGemma = checked(
    gemma_like("gemma", gemma_file("gemma", "GemmaForCausalLM", "", {kGemmaAct, kGemmaActivation, kNoAttentionBias, kCausal}),
               llama_tensors(false)));

}  // namespace terrace::lm
