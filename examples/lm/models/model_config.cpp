#include <algorithm>
#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/models/activation_name.h>
#include <terrace/examples/lm/models/model_config.h>

namespace terrace::lm {
namespace {

[[noreturn]] void refuse(const std::string& what) { throw base::Refused("model: " + what); }

layers::ProjectionParts parts_of(const ProjectionParts& parts, std::optional<bool> bias) {
  return {.tensors = {parts.tensors.begin(), parts.tensors.end()}, .bias = bias.value_or(*parts.bias)};
}

layers::TransformerNames names_of(const ModelConfig& config) {
  const Family& family = config.family;
  const TensorNames& names = family.tensors;
  const auto* const learned = learned_positions(family);
  return {.embedding = std::string(*names.embedding),
          .final_norm = std::string(*names.final_norm),
          .positions = learned ? std::string(*learned->tensor) : "",
          .head = std::string(*names.head),
          .block = std::string(*names.block),
          .attention_norm = std::string(*names.attention_norm),
          .mlp_norm = std::string(*names.mlp_norm),
          .attention_result_norm = std::string(*names.attention_result_norm),
          .mlp_result_norm = std::string(*names.mlp_result_norm),
          .q_norm = std::string(*names.q_norm),
          .k_norm = std::string(*names.k_norm),
          .qkv = parts_of(names.qkv, config.attention_bias),
          .attention_output = parts_of(names.attention_output, config.attention_bias),
          .up = parts_of(names.up, config.mlp_bias),
          .down = parts_of(names.down, config.mlp_bias),
          .router = std::string(*names.experts.router),
          .experts = std::string(*names.experts.experts),
          .expert_up = {{names.experts.up.begin(), names.experts.up.end()}},
          .expert_down = {{names.experts.down.begin(), names.experts.down.end()}}};
}

// Rounded to the weights' dtype, because the models were trained with the rounded factor.
double embedding_factor(const ModelConfig& config) {
  if (!*config.family.get().scales.embedding_by_root) return 1;
  const double root = std::sqrt(static_cast<double>(std::max<std::int64_t>(config.hidden, 1)));
  switch (config.dtype) {
    case DType::bf16: return static_cast<double>(static_cast<float>(bf16(static_cast<float>(root))));
    case DType::fp16: return static_cast<double>(static_cast<float>(fp16(static_cast<float>(root))));
    default: return root;
  }
}

// A window longer than the sequences is removed, because attention is faster without one. But if blocks with a window have
// their own rotary base (Gemma 3), the window only shrinks to the sequence length, so that they keep this base.
layers::Windows windows_within(const ModelConfig& config) {
  auto pattern = config.window.pattern();
  for (auto& window : pattern)
    if (window > config.seq_len) window = config.window_rope_theta == 0 ? 0 : config.seq_len;
  return layers::Windows(std::move(pattern));
}

layers::Positions kind_of(const Positions& positions) {
  return std::holds_alternative<LearnedPositions>(positions) ? layers::Positions::learned : layers::Positions::rotary;
}

}  // namespace

layers::RotatedBlocks all_but_every(std::int64_t every, std::int64_t layers) {
  std::vector<bool> blocks;
  for (std::int64_t b = 1; every != 0 && b <= std::min(layers, every); ++b) blocks.push_back(b % every != 0);
  return layers::RotatedBlocks(layers::shortest_pattern(std::move(blocks), true));
}

SkipShape parse_skips(std::string_view text) {
  if (text == "none") return SkipShape::none;
  if (text == "u") return SkipShape::u;
  refuse(fmt::format("'{}' is not a shape of skip connections; accepted are none and u", text));
}

ModelConfig complete(ModelConfig config) {
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  const Family& family = config.family;
  if (config.ffn == 0) config.ffn = (*family.usual_ffn)(std::clamp(config.hidden, std::int64_t{1}, layers::kLargestWidth));
  if (config.head_size != 0 && config.heads > 0 && config.head_size == config.hidden / config.heads &&
      config.hidden % config.heads == 0)
    config.head_size = 0;
  if (!config.rotated_blocks)
    config.rotated_blocks = all_but_every(rotary_positions(family) ? *rotary_positions(family)->plain_every : 0, config.layers);
  if (config.norm_eps == 0) config.norm_eps = *family.norm_eps.usual;
  if (const auto* const rotary = rotary_positions(family); rotary && config.rope_theta == 0) {
    config.rope_theta = *rotary->base.usual;
  }
  if (const auto* const rotary = rotary_positions(family); rotary && config.window_rope_theta == 0)
    config.window_rope_theta = *rotary->window_base;
  if (!config.attention_cap) config.attention_cap = *family.scales.attention_cap.usual;
  if (!config.logit_cap) config.logit_cap = *family.scales.logit_cap.usual;
  validate(config);
  return config;
}

layers::Transformer transformer_of(const ModelConfig& config) {
  const Family& family = config.family;
  return {.name = std::string(*family.name),
          .layers = config.layers,
          .hidden = config.hidden,
          .heads = config.heads,
          .kv_heads = config.kv_heads,
          .head_size = config.head_size,
          .ffn = config.ffn,
          .seq_len = config.seq_len,
          .window = windows_within(config),
          .vocab = config.vocab,
          .tied = config.tied,
          .vocab_tiles = config.vocab_tiles,
          .head_rows = config.head_rows,
          .mlp_tiles = config.mlp_tiles,
          .mlp_row_tiles = config.mlp_row_tiles,
          .attention_tiles = config.attention_tiles,
          .norm = *family.norm,
          .norm_eps = config.norm_eps,
          .norm_offset = *family.scales.norm_offset,
          .query_key_norms = *family.query_key_norms,
          .scores = {.scale = config.query_scalar == 0 ? 0 : 1 / std::sqrt(config.query_scalar),
                     .cap = config.attention_cap.value_or(0)},
          .activation = config.activation.value_or(*family.activation),
          .embedding_factor = embedding_factor(config),
          .logit_cap = config.logit_cap.value_or(0),
          .positions = kind_of(*family.positions),
          .rope_theta = config.rope_theta,
          .rope_scaling = config.rope_scaling,
          .window_rope_theta = config.window_rope_theta,
          .rope_fraction = config.rope_fraction,
          .rotated_blocks = config.rotated_blocks.value_or(layers::RotatedBlocks()),
          .skips = config.skips,
          .experts = config.experts,
          .adapters = config.adapters,
          .matrices = *family.matrices,
          .names = names_of(config),
          .dtype = config.dtype,
          .products = config.products,
          .place = config.place};
}

// Checks first what the family does not have, then what no transformer has.
void validate(const ModelConfig& config) {
  const Family& family = config.family;
  const auto* const rotary = rotary_positions(family);
  if (!*family.grouped_heads && config.kv_heads != config.heads) {
    refuse(fmt::format("{} has a key-value head for each head: kv_heads must be {}, not {} (grouped heads: model {})",
                       *family.name, config.heads, config.kv_heads,
                       names_of_families("or", [](const Family& other) { return *other.grouped_heads; })));
  }
  if (!rotary && config.rope_theta != 0) {
    refuse(fmt::format("{} rotates nothing: rope_theta must be 0, not {} (rotary positions: model {})", *family.name,
                       config.rope_theta,
                       names_of_families("or", [](const Family& other) { return rotary_positions(other) != nullptr; })));
  }
  if (!rotary && config.rope_scaling.scaling != RotaryScaling::none)
    refuse(fmt::format("{} rotates nothing, so there is no scaling of rotations (rotary positions: model {})", *family.name,
                       names_of_families("or", [](const Family& other) { return rotary_positions(other) != nullptr; })));
  if ((*family.file.head_dim).empty() && config.head_size != 0)
    refuse(fmt::format("{} has heads that share the hidden size: head_dim must be 0, not {} (heads of another width: model {})",
                       *family.name, config.head_size,
                       names_of_families("or", [](const Family& other) { return !(*other.file.head_dim).empty(); })));
  if (config.activation && config.activation != *family.activation && (*family.file.activation).empty())
    refuse(fmt::format("{} computes with {} only", *family.name, name_of(*family.activation)));
  if (config.activation && inputs_of(*config.activation) != inputs_of(*family.activation))
    refuse(fmt::format("{} has no MLP of such a shape: {} needs {} results of its first product", *family.name,
                       name_of(*config.activation), inputs_of(*config.activation)));
  const auto demand_key = [&](const char* field, std::optional<bool> bias, std::string_view key, bool (*has)(const Family&)) {
    if (bias && key.empty())
      refuse(fmt::format("{} has the biases of its tensors: leave out {} (models with or without them: {})", *family.name,
                         field, names_of_families("or", has)));
  };
  demand_key("attention_bias", config.attention_bias, *family.file.attention_bias,
             [](const Family& other) { return !(*other.file.attention_bias).empty(); });
  demand_key("mlp_bias", config.mlp_bias, *family.file.mlp_bias,
             [](const Family& other) { return !(*other.file.mlp_bias).empty(); });
  layers::checked(transformer_of(config));
}

}  // namespace terrace::lm
