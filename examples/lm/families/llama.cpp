// Llama (Touvron et al. 2023), as in Hugging Face's LlamaForCausalLM.
#include <terrace/examples/lm/families/llama_like.h>

namespace terrace::lm {

namespace {

consteval ModelFile llama_own_file() {
  auto file =
      with_attention_bias(llama_file("llama", "LlamaForCausalLM", kNoWindow,
                                     R"({"rms_norm_eps": 1e-6, "intermediate_size": 11008, "max_position_embeddings": 2048})"));
  file.heads_divide = true;
  file.mlp_bias = "mlp_bias";
  return file;
}

}  // namespace

extern constexpr Family kLlama = checked(llama_like("llama", llama_own_file(), llama_tensors(false)));

}  // namespace terrace::lm
