// The common parts of families that are Llama's blocks with small changes.
//
// Owner:   constants. Threads: any.
#pragma once

#include <terrace/examples/lm/models/family.h>

namespace terrace::lm {

// `rope_scaling`: Llama 3.1 and others change the angles of long positions.
inline constexpr RotaryPositions kLlamaPositions{
    .base = {.usual = 10000,
             .varies = true,
             .keys = {"/rope_theta", "/rope_parameters/rope_theta", "/rope_scaling/rope_theta"}},
    .scaling_keys = {"/rope_scaling", "/rope_parameters"},
    .only_scaling = "",
    .fraction_keys = Words::none(),
    .blocks_key = "",
    .every_key = "",
    .plain_every = 0,
    .window_base = 0,
    .window_base_keys = Words::none(),
    .window_scaling_key = ""};

// 8/3 · hidden, rounded up to a multiple of 64.
constexpr std::int64_t llama_ffn(std::int64_t hidden) { return (8 * hidden + 3 * 64 - 1) / (3 * 64) * 64; }

inline constexpr FixedValue kNoAttentionBias{"attention_bias", {"false"}};

// All blocks have the window.
consteval WindowKeys window_of_all(bool types) {
  auto window = kNoWindow;
  window.size = "sliding_window";
  window.types = types;
  return window;
}

// Qwen's window, which `use_sliding_window` must switch on.
consteval WindowKeys window_if_used(Windowed blocks, std::string_view number, std::int64_t usual, bool types) {
  return {.size = "sliding_window",
          .used = "use_sliding_window",
          .blocks = blocks,
          .number = number,
          .usual_number = usual,
          .types = types};
}

// The file says whether attention's four products have biases.
consteval ModelFile with_attention_bias(ModelFile file) {
  file.attention_bias = "attention_bias";
  return file;
}

consteval ModelFile llama_file(std::string_view type, std::string_view architecture, const WindowKeys& window,
                               std::string_view untold, const FixedValues& fixed = FixedValues::none()) {
  return {.type = type,
          .architecture = architecture,
          .layers = "num_hidden_layers",
          .hidden = "hidden_size",
          .kv_heads = "num_key_value_heads",
          .ffn = "intermediate_size",
          .positions = "max_position_embeddings",
          .head_dim = "head_dim",
          .usual_head_dim = 0,
          .heads_divide = false,
          .window = window,
          .activation = "hidden_act",
          .attention_bias = "",
          .mlp_bias = "",
          .tied = false,
          .untold = untold,
          .fixed = fixed,
          .experts = Words::none(),
          .experts_per_token = "",
          .renormalise = "",
          .wrapper = kNoWrapper,
          .unused = Words::none()};
}

consteval TensorNames llama_tensors(bool qkv_bias) {
  return {.optional_prefix = "model.",  // missing in files that the library's AutoModel wrote
          .embedding = "model.embed_tokens",
          .final_norm = "model.norm",
          .head = "lm_head",
          .block = "model.layers.",
          .attention_norm = "input_layernorm",
          .mlp_norm = "post_attention_layernorm",
          .attention_result_norm = "",
          .mlp_result_norm = "",
          .q_norm = "",
          .k_norm = "",
          .qkv = {.tensors = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, .bias = qkv_bias},
          .attention_output = {.tensors = {"self_attn.o_proj"}, .bias = false},
          .up = {.tensors = {"mlp.gate_proj", "mlp.up_proj"}, .bias = false},
          .down = {.tensors = {"mlp.down_proj"}, .bias = false},
          .experts = {.router = "block_sparse_moe.gate",
                      .experts = "block_sparse_moe.experts.",
                      .up = {"w1", "w3"},
                      .down = {"w2"}},
          .buffers = {".rotary_emb.inv_freq"}};  // the frequencies of rotary positions
}

consteval TensorNames with_query_key_norms(TensorNames names) {
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  return names;
}

// Llama's blocks. A family of this kind starts with them and changes what differs.
consteval Family llama_like(std::string_view name, const ModelFile& file, const TensorNames& tensors) {
  return {.name = name,
          .norm = NormKind::rms,
          .scales = kPlainScales,
          .query_key_norms = QueryKeyNorms::none,
          .positions = kLlamaPositions,
          .activation = Activation::swiglu,
          .grouped_heads = true,
          .usual_ffn = llama_ffn,
          .norm_eps = {.usual = 1e-5, .varies = true, .keys = {"/rms_norm_eps"}},
          .heads_keys = {"/num_attention_heads"},
          .file = file,
          .matrices = MatrixOrder::out_in,
          .tensors = tensors};
}

}  // namespace terrace::lm
