// Mistral (Jiang et al. 2023), as in Hugging Face's MistralForCausalLM: Llama with a sliding window.
#include <terrace/examples/lm/families/llama_like.h>

namespace terrace::lm {

// With layer_types the library's Auto classes load it as a Ministral, in which some blocks have no window.
extern constexpr Family kMistral =
    checked(llama_like("mistral",
                       llama_file("mistral", "MistralForCausalLM", window_of_all(true),
                                  R"({"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "intermediate_size": 14336,
                                      "sliding_window": 4096})",
                                  {kNoAttentionBias}),
                       llama_tensors(false)));

}  // namespace terrace::lm
