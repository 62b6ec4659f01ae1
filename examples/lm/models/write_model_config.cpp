// Writes the config.json of a model.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/models/activation_name.h>
#include <terrace/examples/lm/models/config_reader.h>
#include <terrace/examples/lm/models/model_dir.h>
#include <terrace/examples/lm/models/rope_scaling.h>

namespace terrace::lm {

using nlohmann::json;

namespace {

constexpr const char *kOriginalPositions = "original_max_position_embeddings", *kTypes = "layer_types",
                     *kPadding = "pad_token_id";

// True if the file already describes the wanted scaling, perhaps in the way of another version of the library; then it stays.
bool says_the_same(const json& config, const json::json_pointer& scaling, const Rotary& wanted) {
  if (!config.contains(scaling) || !config.at(scaling).is_object()) return false;
  auto object = config.at(scaling);
  if (config.contains(kOriginalPositions)) object[kOriginalPositions] = config.at(kOriginalPositions);
  const auto positions = config.value("max_position_embeddings", json());
  try {
    return rope_scaling_of(object, positions.is_number() ? positions.get<double>() : 0) == wanted;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

json model_config_json(const ModelConfig& config, DType weights, const json& base) {
  const Family& family = config.family;
  const ModelFile& file = family.file;
  const auto refuse = [&](const std::string& what, const std::string& mend) {
    throw base::Refused(
        fmt::format("a model with {} is none that Hugging Face's library has as {}\n  {}", what, *file.architecture, mend));
  };
  if (config.skips != SkipShape::none)
    refuse("skip connections", "train with --save, and read the file with a program of yours");
  const bool has_experts = file.experts.size() != 0;
  if (config.experts.count > 0 && !has_experts)
    refuse("a mixture of experts", "give --model mixtral or qwen3_moe, which have one");
  if (config.experts.count == 0 && has_experts) refuse("no experts", "give --experts, or --model mistral or qwen3");
  if (config.experts.count > 0 && config.experts.shared > 0) refuse("shared experts", "leave --shared-experts out");
  if (config.experts.count > 0 && !config.experts.renormalise && (*file.renormalise).empty())
    refuse("gates that do not add up to 1", "give --model qwen3_moe, or leave --router-gates out");
  if (!config.window.is_usual() && (*file.window.size).empty())
    refuse("a sliding window", "give --model mistral, which has one, or leave --window out");
  const auto* const rotary = rotary_positions(family);
  std::vector<std::int64_t> windows;
  for (std::int64_t b = 0; b < config.layers; ++b) windows.push_back(config.window.of(b));
  const std::int64_t window = std::ranges::max(windows);
  const bool differ = std::ranges::count(windows, window) != config.layers;
  for (const auto one : windows)
    if (one != 0 && one != window)
      refuse(fmt::format("windows of {} and {}", one, window), "give --window one size, and 0 for blocks without it");
  if (differ && !*file.window.types)
    refuse("windows of some blocks", "give one --window for all, or --model mistral, qwen2 or gemma2");
  if (rotary && rotary->window_base_keys.size() == 0 && config.window_rope_theta != 0)
    refuse("a rotary base of blocks with a window", "leave --window-rope-base out, or give --model gemma3");
  const auto& scales = family.scales;
  if (*file.heads_divide && config.hidden % config.heads != 0)
    refuse(fmt::format("{} heads and a hidden size of {}", config.heads, config.hidden),
           "give a --hidden that --heads divides, or --model mistral or qwen3");
  if (config.query_scalar != 0 && (*scales.query_scalar).empty())
    refuse("scores divided otherwise", "leave --query-scalar out");
  if (config.query_scalar != std::floor(config.query_scalar))
    refuse(fmt::format("scores divided by the root of {}", config.query_scalar), "give a whole --query-scalar");
  if (const auto original = config.rope_scaling.original; original != std::floor(original))
    refuse(fmt::format("positions that are scaled from {}", original), "give --rope-scaling a whole original");
  const auto demand_cap = [&](const CapNumber& number, double cap, const char* flag) {
    if ((*number.key).empty() && cap != *number.usual)
      refuse("a cap of its scores or logits", fmt::format("leave {} out, or give --model gemma2", flag));
  };
  demand_cap(scales.attention_cap, config.attention_cap.value_or(*scales.attention_cap.usual), "--attention-cap");
  demand_cap(scales.logit_cap, config.logit_cap.value_or(*scales.logit_cap.usual), "--logit-cap");
  if (rotary && rotary->fraction_keys.size() == 0 && config.rope_fraction != 1)
    refuse("heads of which a part is rotated", "give --model phi3, or leave --rope-fraction out");
  if (const auto kind = kind_of(config.rope_scaling);
      rotary && !(*rotary->only_scaling).empty() && kind != "none" && kind != *rotary->only_scaling)
    refuse(fmt::format("the scaling {} of its positions", kind),
           fmt::format("give --rope-scaling of kind {} or none, or --model llama", *rotary->only_scaling));
  // For a family with only one kind of scaling, the library computes the number of pairs from hidden / heads, whatever the head
  // width is.
  if (const auto pairs =
          static_cast<std::int64_t>(static_cast<double>(config.hidden / config.heads) * config.rope_fraction) / 2;
      rotary && !(*rotary->only_scaling).empty() && !config.rope_scaling.near.empty() &&
      std::ssize(config.rope_scaling.near) != pairs)
    refuse(fmt::format("{} factors of positions, where hidden / heads has {} pairs", config.rope_scaling.near.size(), pairs),
           "leave --head-dim out, or give --model llama");
  const auto blocks = config.rotated_blocks.value_or(layers::RotatedBlocks());
  if (rotary && (*rotary->blocks_key).empty() && !blocks.is_usual())
    refuse("blocks that rotate nothing", "give --model smollm3, or leave --rope-layers out");
  json out = base.is_object() ? language_model_in(base) : json::object();
  out["architectures"] = {*file.architecture};
  out["model_type"] = *file.type;
  const auto set = [&](std::string_view key, const json& value) {
    if (!key.empty()) out[std::string(key)] = value;
  };
  set(*file.layers, config.layers);
  set(*file.hidden, config.hidden);
  set(word_of(family.heads_keys), config.heads);
  set(*file.kv_heads, config.kv_heads);
  set(*file.ffn, config.ffn);
  // A Mistral with layer_types is a Ministral, in which the library does not derive the head width.
  const bool has_width = config.head_size != 0 || *file.usual_head_dim != 0 || out.contains(std::string(*file.head_dim));
  // Mixtral's class does not derive it, but needs it to scale positions.
  const bool scales_mixture = config.experts.count != 0 && kind_of(config.rope_scaling) != "none";
  if (has_width || differ || out.contains(kTypes) || scales_mixture) set(*file.head_dim, config.head_dim());
  // Learned positions have a vector for each trained position; rotary positions are not limited.
  const auto positions = out.find(std::string(*file.positions));
  const bool keeps = rotary_positions(family) && positions != out.end() && *positions > config.seq_len;
  if (config.rope_scaling.scaling == RotaryScaling::dynamic)  // the library scales longer sequences than this
    set(*file.positions, static_cast<std::int64_t>(config.rope_scaling.original));
  else if (!keeps)
    set(*file.positions, config.seq_len);
  set("vocab_size", config.vocab);
  for (const auto name : file.experts)  // each key that the file has, and the oldest one, which every version reads
    if (name == file.experts[0] || out.contains(std::string(name))) set(name, config.experts.count);
  set(*file.experts_per_token, config.experts.chosen);
  set(*file.renormalise, config.experts.renormalise);
  set("tie_word_embeddings", config.tied);
  const auto activation = config.activation.value_or(*family.activation);
  if (const auto told = out.value(std::string(*file.activation), json());
      !told.is_string() || activation_named(told.get<std::string>(), inputs_of(activation)) != activation)
    set(*file.activation, name_of(activation));
  set(*file.attention_bias, config.attention_bias.value_or(false));
  set(*file.mlp_bias, config.mlp_bias.value_or(false));
  // The library's default padding token would be outside the vocabulary, and its embedding would refuse it.
  const auto untold = json::parse(*file.untold);
  if (!out.contains(kPadding) && untold.value(kPadding, std::int64_t{-1}) >= config.vocab) out[kPadding] = nullptr;
  const auto blocks_of_window = *file.window.blocks;
  if (window != 0 || ((*file.window.used).empty() && blocks_of_window == Windowed::all))
    set(*file.window.size, window == 0 ? json() : json(window));
  set(*file.window.used, window != 0);
  if (window != 0 && blocks_of_window == Windowed::later)  // for versions that do not know layer_types
    set(*file.window.number, std::ranges::find(windows, window) - windows.begin());
  const bool by_rule = blocks_of_window == Windowed::all ? !differ : window == 0 && blocks_of_window != Windowed::all_but_last;
  if (out.contains(kTypes) || !by_rule) {
    json types = json::array();
    for (const auto one : windows) types.push_back(one == 0 ? "full_attention" : "sliding_attention");
    out[kTypes] = types;
  }
  // The library requires integral values to be written as integers.
  const auto shortest = [](double number) {
    return number == std::floor(number) && std::abs(number) < 1e15 ? json(static_cast<std::int64_t>(number)) : json(number);
  };
  set(*scales.query_scalar, shortest(config.query_scalar == 0 ? static_cast<double>(config.head_dim()) : config.query_scalar));
  const auto set_cap = [&](const CapNumber& number, double cap) { set(*number.key, cap == 0 ? json() : json(cap)); };
  set_cap(scales.attention_cap, config.attention_cap.value_or(*scales.attention_cap.usual));
  set_cap(scales.logit_cap, config.logit_cap.value_or(*scales.logit_cap.usual));
  for (const auto& [key, values] : file.fixed)
    if (!out.contains(std::string(key))) set(key, json::parse(values.front()));
  out[json::json_pointer(std::string(family.norm_eps.keys[0]))] = config.norm_eps;
  // Each spelling that the file has, and the oldest one, which every version reads.
  const auto set_each = [&](const Words& keys, double value) {
    for (const auto key : keys) {
      const json::json_pointer pointer{std::string(key)};
      if (key == keys[0] || out.contains(pointer)) out[pointer] = value;
    }
  };
  if (rotary) {
    set_each(rotary->base.keys, config.rope_theta);
    set_each(rotary->window_base_keys, config.window_rope_theta);
    set_each(rotary->fraction_keys, config.rope_fraction);
    // The number outside the object overrides the one in it.
    if (const auto& scaling = config.rope_scaling;
        scaling.scaling == RotaryScaling::longrope || (scaling.original != 0 && out.contains(kOriginalPositions)))
      out[kOriginalPositions] = static_cast<std::int64_t>(scaling.original);
    for (const auto key : rotary->scaling_keys) {
      // rope_parameters also contains the base; it is only written if the base file had it.
      const json::json_pointer pointer{std::string(key)};
      if (says_the_same(out, pointer, config.rope_scaling)) continue;
      const auto scaling = rope_scaling_json(config.rope_scaling);
      if (out.contains(pointer) && out[pointer].is_object() && out[pointer].contains("rope_theta")) {
        auto own = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
        for (const auto* const other : {"rope_theta", "partial_rotary_factor"})
          if (out[pointer].contains(other)) own[other] = out[pointer][other];
        out[pointer] = own;
      } else if (out.contains(pointer) || key == rotary->scaling_keys[0]) {
        out[pointer] = scaling;
      }
    }
    json of_blocks = json::array();
    for (std::int64_t b = 0; b < config.layers; ++b) of_blocks.push_back(blocks.of(b) ? 1 : 0);
    set(*rotary->blocks_key, of_blocks);
  }
  const char* const dtype = weights == DType::bf16 ? "bfloat16" : weights == DType::fp64 ? "float64" : "float32";
  out["torch_dtype"] = dtype;
  if (out.contains("dtype")) out["dtype"] = dtype;
  return out;
}

}  // namespace terrace::lm
