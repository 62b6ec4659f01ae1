#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/examples/lm/model_config.h>

namespace terrace::lm {
namespace {

constexpr std::int64_t kByteTokens = 256;

[[noreturn]] void refuse(const std::string& what) { throw Error("model: " + what, Exit::usage); }

layers::ProjectionParts parts_of(const ProjectionParts& parts) {
  return {.tensors = {parts.tensors.begin(), parts.tensors.end()}, .bias = *parts.bias};
}

layers::TransformerNames names_of(const Family& family) {
  const TensorNames& names = family.tensors;
  const auto* const learned = learned_positions(family);
  return {.embedding = std::string(*names.embedding),
          .final_norm = std::string(*names.final_norm),
          .positions = learned ? std::string(*learned->tensor) : "",
          .head = std::string(*names.head),
          .block = std::string(*names.block),
          .attention_norm = std::string(*names.attention_norm),
          .mlp_norm = std::string(*names.mlp_norm),
          .qkv = parts_of(names.qkv),
          .attention_output = parts_of(names.attention_output),
          .up = parts_of(names.up),
          .down = parts_of(names.down),
          .expert_up = {layers::up_results(*family.activation) == 1 ? std::vector<std::string>{"w1"}
                                                                    : std::vector<std::string>{"w1", "w3"}}};
}

layers::Positions kind_of(const Positions& positions) {
  return std::holds_alternative<LearnedPositions>(positions) ? layers::Positions::learned : layers::Positions::rotary;
}

}  // namespace

SkipShape parse_skips(std::string_view text) {
  if (text == "none") return SkipShape::none;
  if (text == "u") return SkipShape::u;
  refuse(fmt::format("'{}' is not a shape of skip connections; accepted are none and u", text));
}

ModelConfig complete(ModelConfig config) {
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  const Family& family = config.family;
  if (config.ffn == 0) config.ffn = (*family.usual_ffn)(std::clamp(config.hidden, std::int64_t{1}, layers::kLargestWidth));
  if (config.norm_eps == 0) config.norm_eps = *family.norm_eps.usual;
  if (const auto* const rotary = rotary_positions(family); rotary && config.rope_theta == 0) {
    config.rope_theta = *rotary->base.usual;
  }
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
          .ffn = config.ffn,
          .seq_len = config.seq_len,
          .window = config.window,
          .vocab = config.vocab,
          .tied = config.tied,
          .vocab_tiles = config.vocab_tiles,
          .mlp_tiles = config.mlp_tiles,
          .mlp_row_tiles = config.mlp_row_tiles,
          .attention_tiles = config.attention_tiles,
          .norm = *family.norm,
          .norm_eps = config.norm_eps,
          .activation = *family.activation,
          .positions = kind_of(*family.positions),
          .rope_theta = config.rope_theta,
          .rope_scaling = config.rope_scaling,
          .skips = config.skips,
          .experts = config.experts,
          .matrices = *family.matrices,
          .names = names_of(family),
          .dtype = config.dtype,
          .tensor = config.tensor,
          .context = config.context,
          .expert = config.expert};
}

// What the family has not; then what no transformer has.
void validate(const ModelConfig& config) {
  const Family& family = config.family;
  const auto* const rotary = rotary_positions(family);
  if (!*family.grouped_heads && config.kv_heads != config.heads) {
    refuse(fmt::format("{} has a key-value head for each head: kv_heads must be {}, not {} (grouped heads: model {})",
                       *family.name, config.heads, config.kv_heads,
                       names_of_families("or", [](const Family& other) { return *other.grouped_heads; })));
  }
  if (config.vocab < kByteTokens) {
    refuse(fmt::format("vocab ({}) is smaller than the {} byte tokens: the nearest is vocab {}", config.vocab, kByteTokens,
                       kByteTokens));
  }
  if (!rotary && config.rope_theta != 0) {
    refuse(fmt::format("{} rotates nothing: rope_theta must be 0, not {} (rotary positions: model {})", *family.name,
                       config.rope_theta,
                       names_of_families("or", [](const Family& other) { return rotary_positions(other) != nullptr; })));
  }
  if (!rotary && config.rope_scaling.scaling != RotaryScaling::none)
    refuse(fmt::format("{} rotates nothing, so there is no scaling of rotations (rotary positions: model {})", *family.name,
                       names_of_families("or", [](const Family& other) { return rotary_positions(other) != nullptr; })));
  layers::checked(transformer_of(config));
}

}  // namespace terrace::lm
