// Mistral (Jiang et al. 2023), as in Hugging Face's MistralForCausalLM: Llama with a sliding window.
#include "llama_like.h"

namespace terrace::lm {

extern constexpr Family kMistral = checked(
    llama_like("mistral", llama_file("mistral", "MistralForCausalLM", "sliding_window", {kSilu}), llama_tensors(false)));

}  // namespace terrace::lm
