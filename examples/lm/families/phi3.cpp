// Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024), as in Hugging Face's Phi3ForCausalLM: Llama with q, k and v in one tensor, gate
// and up in one, and a sliding window. Phi-4-mini rotates a part of each head.
#include <terrace/examples/lm/families/llama_like.h>

namespace terrace::lm {
namespace {

constexpr RotaryPositions kPhi3Positions{
    .base = {.usual = 10000,
             .varies = true,
             .keys = {"/rope_theta", "/rope_parameters/rope_theta", "/rope_scaling/rope_theta"}},
    .scaling_keys = {"/rope_scaling", "/rope_parameters"},
    .only_scaling = "longrope",
    .fraction_keys = {"/partial_rotary_factor", "/rope_parameters/partial_rotary_factor",
                      "/rope_scaling/partial_rotary_factor"},
    .blocks_key = "",
    .every_key = "",
    .plain_every = 0,
    .window_base = 0,
    .window_base_keys = Words::none(),
    .window_scaling_key = ""};

consteval ModelFile phi3_file() {
  auto file = llama_file("phi3", "Phi3ForCausalLM", window_of_all(false),
                         R"({"intermediate_size": 8192, "original_max_position_embeddings": 4096, "pad_token_id": 32000})",
                         {kNoAttentionBias});
  file.unused = {"original_max_position_embeddings"};  // not used by models whose positions are not scaled
  return file;
}

consteval TensorNames phi3_tensors() {
  auto names = llama_tensors(false);
  names.qkv.tensors = {"self_attn.qkv_proj"};
  names.up.tensors = {"mlp.gate_up_proj"};
  return names;
}

consteval Family phi3() {
  auto family = llama_like("phi3", phi3_file(), phi3_tensors());
  family.positions = kPhi3Positions;
  return family;
}

}  // namespace

extern constexpr Family kPhi3 = checked(phi3());

}  // namespace terrace::lm
