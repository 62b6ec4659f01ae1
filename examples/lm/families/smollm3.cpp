// SmolLM3 (Hugging Face 2025), as in SmolLM3ForCausalLM: Llama in which every fourth block does not rotate. SmolLM and SmolLM2
// are plain Llama.
#include <terrace/examples/lm/families/llama_like.h>

namespace terrace::lm {
namespace {

constexpr RotaryPositions kSmollm3Positions{
    .base = {.usual = 2000000,
             .varies = true,
             .keys = {"/rope_theta", "/rope_parameters/rope_theta", "/rope_scaling/rope_theta"}},
    .scaling_keys = {"/rope_scaling", "/rope_parameters"},
    .only_scaling = "",
    .fraction_keys = Words::none(),
    .blocks_key = "no_rope_layers",
    .every_key = "no_rope_layer_interval",
    .plain_every = 4,
    .window_base = 0,
    .window_base_keys = Words::none(),
    .window_scaling_key = ""};

consteval ModelFile smollm3_file() {
  auto file =
      with_attention_bias(llama_file("smollm3", "SmolLM3ForCausalLM", window_if_used(Windowed::unrotated, "", 0, true),
                                     R"({"num_key_value_heads": 4, "intermediate_size": 11008, "pad_token_id": 128004})"));
  file.mlp_bias = "mlp_bias";
  file.tied = true;
  return file;
}

consteval Family smollm3() {
  auto family = llama_like("smollm3", smollm3_file(), llama_tensors(false));
  family.positions = kSmollm3Positions;
  family.norm_eps.usual = 1e-6;
  return family;
}

}  // namespace

extern constexpr Family kSmollm3 = checked(smollm3());

}  // namespace terrace::lm
