// Mixtral (Jiang et al. 2024), as in Hugging Face's MixtralForCausalLM: Mistral with a mixture of experts in each block. Its
// tensor names are those of terrace's own experts. Without --experts the model is dense; the library has no such model.
#include <terrace/examples/lm/families/llama_like.h>

namespace terrace::lm {
namespace {

consteval RotaryPositions mixtral_positions() {
  auto positions = kLlamaPositions;
  positions.base.usual = 1000000;
  return positions;
}

consteval ModelFile mixtral_file() {
  auto file =
      llama_file("mixtral", "MixtralForCausalLM", window_of_all(false),
                 R"({"num_key_value_heads": 8, "intermediate_size": 14336, "num_local_experts": 8,
                             "num_experts_per_tok": 2})",
                 {kNoAttentionBias, FixedValue{"output_router_logits", {"false"}}, FixedValue{"router_jitter_noise", {"0.0"}}});
  file.experts = {"num_local_experts"};
  file.experts_per_token = "num_experts_per_tok";
  file.unused = {"router_aux_loss_coef"};  // for a loss that the library only adds with output_router_logits
  return file;
}

consteval Family mixtral() {
  auto family = llama_like("mixtral", mixtral_file(), llama_tensors(false));
  family.positions = mixtral_positions();
  return family;
}

}  // namespace

extern constexpr Family kMixtral = checked(mixtral());

}  // namespace terrace::lm
