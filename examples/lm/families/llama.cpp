// Llama (Touvron et al. 2023), as in Hugging Face's LlamaForCausalLM.
#include "llama_like.h"

namespace terrace::lm {

extern constexpr Family kLlama =
    checked(llama_like("llama",
                       llama_file("llama", "LlamaForCausalLM", "",
                                  {kSilu, FixedValue{"attention_bias", {"false"}}, FixedValue{"mlp_bias", {"false"}},
                                   FixedValue{"pretraining_tp", {"1"}}}),
                       llama_tensors(false)));

}  // namespace terrace::lm
