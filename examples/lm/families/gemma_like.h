// The common parts of Gemma's three generations: Llama's blocks with GELU gates, norm weights stored as gain − 1, and an
// embedding that is multiplied by the square root of its width.
//
// Owner:   constants. Threads: any.
#pragma once

#include <terrace/examples/lm/families/llama_like.h>

namespace terrace::lm {

inline constexpr Scales kGemmaScales{.norm_offset = 1,
                                     .embedding_by_root = true,
                                     .query_scalar = "",
                                     .untold_query_scalar = 256,
                                     .attention_cap = {.key = "", .usual = 0},
                                     .logit_cap = {.key = "", .usual = 0}};

// Files of the first generation say "gelu" but mean the approximation.
inline constexpr FixedValue kGemmaAct{"hidden_act", {"\"gelu_pytorch_tanh\"", "\"gelu\""}};
inline constexpr FixedValue kGemmaActivation{"hidden_activation", {"\"gelu_pytorch_tanh\""}};
inline constexpr FixedValue kCausal{"use_bidirectional_attention", {"false"}};

// Adds a norm after each half of a block.
consteval TensorNames with_result_norms(TensorNames names) {
  names.attention_result_norm = "post_attention_layernorm";
  names.mlp_norm = "pre_feedforward_layernorm";
  names.mlp_result_norm = "post_feedforward_layernorm";
  return names;
}

// `activation`: the config.json key of the activation's name; "": it is always GELU's approximation.
consteval ModelFile gemma_file(std::string_view type, std::string_view architecture, const WindowKeys& window,
                               std::string_view untold, std::string_view activation) {
  const FixedValues with_activation{kGemmaAct, kCausal}, without{kGemmaAct, kGemmaActivation, kCausal};
  auto file =
      with_attention_bias(llama_file(type, architecture, window, untold, activation.empty() ? without : with_activation));
  file.activation = activation;
  file.usual_head_dim = 256;
  file.tied = true;
  file.unused = {"cache_implementation"};
  return file;
}

// Every `number`-th block has no window; all others have it.
consteval WindowKeys gemma_window(std::string_view number, std::int64_t usual) {
  return {.size = "sliding_window",
          .used = "",
          .blocks = Windowed::all_but_last,
          .number = number,
          .usual_number = usual,
          .types = true};
}

// The scales of the second and third generation: scores are divided by the root of a number in the file, and capped. The
// arguments are the default caps; 0: none.
consteval Scales capped_scales(double attention_cap, double logit_cap) {
  auto scales = kGemmaScales;
  scales.query_scalar = "query_pre_attn_scalar";
  scales.attention_cap = {.key = "attn_logit_softcapping", .usual = attention_cap};
  scales.logit_cap = {.key = "final_logit_softcapping", .usual = logit_cap};
  return scales;
}

consteval Family gemma_like(std::string_view name, const ModelFile& file, const TensorNames& tensors) {
  auto family = llama_like(name, file, tensors);
  family.scales = kGemmaScales;
  family.activation = Activation::geglu_tanh;
  family.norm_eps.usual = 1e-6;
  return family;
}

}  // namespace terrace::lm
