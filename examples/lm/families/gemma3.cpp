// Gemma 3 (Gemma Team 2025), only the language model, as in Hugging Face's Gemma3ForCausalLM: five of six blocks have a window
// and their own rotary base; each half of a block has a norm before and a norm after it, and each head of q and k has one.
#include <terrace/examples/lm/families/gemma_like.h>

namespace terrace::lm {
namespace {

constexpr RotaryPositions kGemma3Positions{
    .base = {.usual = 1000000,
             .varies = true,
             .keys = {"/rope_theta", "/rope_parameters/full_attention/rope_theta", "/rope_scaling/rope_theta"}},
    .scaling_keys = {"/rope_scaling", "/rope_parameters/full_attention"},
    .only_scaling = "",
    .fraction_keys = Words::none(),
    .blocks_key = "",
    .every_key = "",
    .plain_every = 0,
    .window_base = 10000,
    .window_base_keys = {"/rope_local_base_freq", "/rope_parameters/sliding_attention/rope_theta"},
    .window_scaling_key = "/rope_parameters/sliding_attention"};

consteval Family gemma3() {
  auto file =
      gemma_file("gemma3_text", "Gemma3ForCausalLM", gemma_window("sliding_window_pattern", 6),
                 R"({"num_key_value_heads": 4, "intermediate_size": 9216, "sliding_window": 4096})", "hidden_activation");
  file.heads_divide = true;
  file.unused = {"cache_implementation", "attn_logit_softcapping"};  // the library ignores the second one in attention
  // The 4B, 12B and 27B models also process images.
  file.wrapper = {.type = "gemma3",
                  .defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
                                  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
                                  "max_position_embeddings": 131072, "query_pre_attn_scalar": 256})",
                  .prefix = "language_model."};
  auto family = gemma_like("gemma3", file, with_query_key_norms(with_result_norms(llama_tensors(false))));
  family.query_key_norms = QueryKeyNorms::heads;
  family.positions = kGemma3Positions;
  family.scales = capped_scales(0, 0);
  family.scales.attention_cap.key = "";
  return family;
}

}  // namespace

extern constexpr Family kGemma3 = checked(gemma3());

}  // namespace terrace::lm
