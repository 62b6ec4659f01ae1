// The names of a transformer's parameters in files of weights. The defaults are those of Hugging Face's Llama.
//
// Owner, threads: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::layers {

// Names are kept without their endings.
inline std::string weight_name(std::string_view tensor) { return std::string(tensor) + ".weight"; }
inline std::string bias_name(std::string_view tensor) { return std::string(tensor) + ".bias"; }

// The two matrices of an adapter are named like the tensor that they adapt, with these suffixes, as in Hugging Face's PEFT.
inline constexpr std::string_view kAdapterA = ".lora_A", kAdapterB = ".lora_B";
// Adapters of experts: one for all results of an expert's first product, and one for its second. Hugging Face's library uses
// these names for the products of all experts together.
inline constexpr std::string_view kExpertUp = "gate_up_proj", kExpertDown = "down_proj";
// The same products, as Adapters::tensors names them.
inline constexpr std::string_view kExpertsUp = "experts.gate_up_proj", kExpertsDown = "experts.down_proj";
inline bool is_adapter(std::string_view name) {
  return name.find(kAdapterA) != std::string_view::npos || name.find(kAdapterB) != std::string_view::npos;
}

// A product with weights. Several results of one input (q, k, v; gate, up) are in one tensor, or in a tensor each.
struct ProjectionParts {
  std::vector<std::string> tensors;
  bool bias = false;  // of each tensor
};

struct TransformerNames {
  std::string embedding = "model.embed_tokens", final_norm = "model.norm";
  std::string positions = "model.embed_positions";  // only with learned positions
  std::string head = "lm_head";                     // only if the head has its own table
  std::string block = "model.layers.";              // followed by the number of a block
  // In a block.
  std::string attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm";  // empty: no norm before the half
  std::string attention_result_norm, mlp_result_norm;  // norms of a half's result; empty: none
  std::string q_norm, k_norm;                          // empty: none
  ProjectionParts qkv = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}};
  ProjectionParts attention_output = {{"self_attn.o_proj"}};
  ProjectionParts up = {{"mlp.gate_proj", "mlp.up_proj"}};  // without a gate: one name
  ProjectionParts down = {{"mlp.down_proj"}};
  // Instead of up and down if the MLP is a mixture of experts, as in Mixtral. The number of an expert follows `experts`.
  std::string router = "block_sparse_moe.gate", experts = "block_sparse_moe.experts.";
  std::string shared_experts = "block_sparse_moe.shared_experts.";
  ProjectionParts expert_up = {{"w1", "w3"}};  // without a gate: one name
  ProjectionParts expert_down = {{"w2"}};

  // "model.layers.3." + name
  [[nodiscard]] std::string in_block(std::int64_t number, std::string_view name) const {
    return block + std::to_string(number) + "." + std::string(name);
  }
  // Empty if the block has no such norm.
  [[nodiscard]] std::string norm_in_block(std::int64_t number, std::string_view norm) const {
    return norm.empty() ? std::string() : in_block(number, norm);
  }
};

}  // namespace terrace::layers
