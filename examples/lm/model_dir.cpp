#include <terrace/examples/lm/model_dir.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/error.h>
#include <terrace/core/json_text.h>
#include <terrace/core/printable.h>
#include <terrace/core/text_file.h>
#include <terrace/examples/lm/rope_scaling.h>

namespace terrace::lm {
namespace {

using nlohmann::json;

// Keys that change nothing of what the model computes: where it came from, how it is initialised, special tokens, how the
// library runs it, and dropout, which terrace does not have.
constexpr std::array<std::string_view, 42> kHarmless{"architectures",
                                                     "model_type",
                                                     "transformers_version",
                                                     "torch_dtype",
                                                     "dtype",
                                                     "initializer_range",
                                                     "bos_token_id",
                                                     "eos_token_id",
                                                     "pad_token_id",
                                                     "sep_token_id",
                                                     "cls_token_id",
                                                     "unk_token_id",
                                                     "use_cache",
                                                     "attention_dropout",
                                                     "hidden_dropout",
                                                     "attn_pdrop",
                                                     "embd_pdrop",
                                                     "resid_pdrop",
                                                     "n_ctx",
                                                     "task_specific_params",
                                                     "output_attentions",
                                                     "output_hidden_states",
                                                     "return_dict",
                                                     "torchscript",
                                                     "use_bfloat16",
                                                     "name_or_path",
                                                     "id2label",
                                                     "label2id",
                                                     "finetuning_task",
                                                     "problem_type",
                                                     "chunk_size_feed_forward",
                                                     "reorder_and_upcast_attn",
                                                     "max_window_layers",
                                                     "tokenizer_class",
                                                     "prefix",
                                                     "is_encoder_decoder",
                                                     "is_decoder",
                                                     "cross_attention_hidden_size",
                                                     "pruned_heads",
                                                     "tie_encoder_decoder",
                                                     "unsloth_version",
                                                     "attn_implementation"};

constexpr std::int64_t kMostBlocks = 1 << 16;  // as layers::checked() has it

constexpr const char* kMend = "\n  bring the file back as the library wrote it";

// One config.json being read: every key that is asked for is known.
class ConfigReader {
 public:
  ConfigReader(json values, std::string name) : values_(std::move(values)), name_(std::move(name)) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& mend) const {
    throw Error(fmt::format("{}: {}\n  {}", name_, what, mend), Exit::usage);
  }
  // Null is as good as no key.
  const json* find(std::string_view key) {
    known_.emplace_back(key);
    const auto at = values_.find(std::string(key));
    return key.empty() || at == values_.end() || at->is_null() ? nullptr : &*at;
  }
  std::optional<std::int64_t> integer(std::string_view key) {
    const auto* const value = find(key);
    if (!value) return std::nullopt;
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    if (!value->is_number_integer() || *value < 0 || *value > kMost)
      refuse(fmt::format("{} is {}, which is no size", key, shown(*value)), "mend the file");
    return value->get<std::int64_t>();
  }
  std::int64_t size(std::string_view key) {
    const auto value = integer(key);
    if (!value) refuse(fmt::format("it does not tell {}", key), "mend the file, or give --model a family and the sizes");
    return *value;
  }
  // Under one of the names that versions gave it.
  std::int64_t size(const Words& names) {
    std::optional<std::int64_t> found;
    for (const auto name : names)
      if (const auto value = integer(name); value && !found) found = value;
    return found ? *found : size(names[0]);
  }
  bool renormalises(std::string_view key) {
    if (key.empty()) return true;
    const auto* const value = find(key);
    if (value && !value->is_boolean())
      refuse(fmt::format("{} is {}, neither true nor false", key, shown(*value)), "mend the file");
    return value && *value == true;
  }
  std::optional<double> number(const Words& keys) {
    for (const auto key : keys) {
      known_.emplace_back(key.substr(1, key.find('/', 1) - 1));
      const json::json_pointer pointer{std::string(key)};
      if (!values_.contains(pointer) || values_.at(pointer).is_null()) continue;
      const auto& value = values_.at(pointer);
      if (!value.is_number() || !std::isfinite(value.get<double>()))
        refuse(fmt::format("{} is {}, which is no number", key.substr(1), shown(value)), "mend the file");
      return value.get<double>();
    }
    return std::nullopt;
  }
  [[nodiscard]] static std::string shown(const json& value) {
    auto text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() > 100) text = text.substr(0, 100) + "…";
    return printable(text);
  }

  void demand_fixed(const FixedValues& fixed) {
    for (const auto& [key, values] : fixed) {
      const auto* const found = find(key);
      const auto is = [&](std::string_view text) { return !text.empty() && *found == json::parse(text); };
      if (!found || std::ranges::any_of(values, is)) continue;
      refuse(fmt::format("{} is {}: terrace has this model with {} only", key, shown(*found), values.front()),
             "train another model");
    }
  }
  // Angles of long positions that are changed.
  Rotary scaling_of(const RotaryPositions& rotary, std::int64_t positions) {
    Rotary found;
    for (const auto key : rotary.scaling_keys) {
      const auto* const scaling = find(key);
      if (!scaling) continue;
      try {
        const auto one = rope_scaling_of(*scaling, static_cast<double>(positions));
        if (one.scaling != RotaryScaling::none) found = one;
      } catch (const Error& error) {
        refuse(fmt::format("{}: {}", key, error.what()), "terrace has no other changes of rotary positions");
      }
    }
    return found;
  }
  // With newer versions every layer has a type, and only those of one type have the window.
  layers::Windows windows(std::string_view key) {
    const auto window = integer(key).value_or(0);
    const auto* const types = find("layer_types");
    if (!types) return window;
    std::vector<std::int64_t> of_blocks;
    const auto is_known = [&](const json& type) {
      return type == "full_attention" || (type == "sliding_attention" && window != 0);
    };
    if (!types->is_array() || types->empty() || !std::ranges::all_of(*types, is_known))
      refuse(fmt::format("layer_types is {}, and the window {}", shown(*types), window), "train another model");
    for (const auto& type : *types) of_blocks.push_back(type == "full_attention" ? 0 : window);
    const bool alike = std::ranges::all_of(of_blocks, [&](auto w) { return w == of_blocks.front(); });
    return alike ? layers::Windows(of_blocks.front()) : layers::Windows(of_blocks);
  }
  // The part of a head that is rotated.
  double fraction(const RotaryPositions& rotary) {
    const auto told = number(rotary.fraction_keys);
    const Words of_all{"/partial_rotary_factor", "/rope_parameters/partial_rotary_factor"};
    if (const auto other = number(of_all); rotary.fraction_keys.size() == 0 && other.value_or(1) != 1)
      refuse(fmt::format("partial_rotary_factor is {}: terrace has this model with 1 only", *other), "train another model");
    return told.value_or(1);
  }
  // Blocks that rotate: 1 in a list of all blocks.
  std::optional<layers::RotatedBlocks> rotated_blocks(const RotaryPositions& rotary, std::int64_t blocks) {
    const std::string_view key = *rotary.blocks_key;
    const auto every = integer(*rotary.every_key);
    const auto* const list = find(key);
    if (blocks > kMostBlocks) return std::nullopt;  // complete() refuses them
    if (!list) return every ? std::optional(all_but_every(*every, blocks)) : std::nullopt;
    std::vector<bool> rotated;
    const auto is_flag = [](const json& flag) { return flag == 0 || flag == 1; };
    if (!list->is_array() || std::ssize(*list) != blocks || !std::ranges::all_of(*list, is_flag))
      refuse(fmt::format("{} is {}, which is no list of 0 and 1 for each of {} layers", key, shown(*list), blocks),
             "mend the file");
    for (const auto& flag : *list) rotated.push_back(flag == 1);
    return layers::RotatedBlocks(std::move(rotated));
  }
  void skip(const Words& keys) { known_.insert(known_.end(), keys.begin(), keys.end()); }
  void demand_nothing_else() const {
    std::vector<std::string> unknown;
    for (const auto& [key, value] : values_.items()) {
      const bool harmless = key.starts_with('_') || key.starts_with("summary_") || std::ranges::count(kHarmless, key) != 0;
      if (!harmless && !value.is_null() && std::ranges::count(known_, key) == 0)
        unknown.push_back(fmt::format("{} ({})", printable(key), shown(value)));
    }
    if (unknown.empty()) return;
    refuse(fmt::format("it has what terrace does not know: {}", fmt::join(unknown, ", ")),
           "if that changes nothing of what the model computes, take it out of a copy of the file");
  }

 private:
  json values_;
  std::string name_;
  std::vector<std::string> known_;
};

const Family& family_of(ConfigReader& reader) {
  const auto* const type = reader.find("model_type");
  std::vector<std::string_view> types;
  for (const auto* const family : families()) {
    if (type && *type == std::string(*family->file.type)) return *family;
    types.push_back(*family->file.type);
  }
  reader.refuse(type ? fmt::format("model_type is {}", ConfigReader::shown(*type)) : "it does not tell model_type",
                fmt::format("terrace has {}", fmt::join(types, ", ")));
}

std::int64_t head_size_of(ConfigReader& reader, const ModelConfig& config) {
  const ModelFile& file = config.family.get().file;
  if (!(*file.head_dim).empty()) return reader.integer(*file.head_dim).value_or(*file.usual_head_dim);
  if (config.heads == 0 || config.hidden % config.heads != 0) return 0;  // complete() refuses it
  if (const auto dim = reader.integer("head_dim"); dim && *dim != config.head_dim())
    reader.refuse(fmt::format("head_dim is {}, and hidden size divided by heads is {}", *dim, config.head_dim()),
                  "terrace has heads that share the hidden size");
  return 0;
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, const std::string& name) {
  json values;
  try {
    values = parse_json(text);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}{}", name, error.what(), kMend), Exit::corrupt);
  }
  if (!values.is_object()) throw Error(fmt::format("{}: it is no JSON object{}", name, kMend), Exit::corrupt);
  ConfigReader reader(std::move(values), name);
  const Family& family = family_of(reader);
  const ModelFile& file = family.file;
  ModelConfig config{.family = family};
  config.layers = reader.size(*file.layers);
  config.hidden = reader.size(*file.hidden);
  const auto heads = reader.number(family.heads_keys).value_or(0);
  if (!(heads >= 1 && heads <= 1 << 20 && heads == std::floor(heads)))
    reader.refuse(fmt::format("{} is {}, which is no number of heads", word_of(family.heads_keys), heads), "mend the file");
  config.heads = static_cast<std::int64_t>(heads);
  config.kv_heads = reader.integer(*file.kv_heads).value_or(0);
  config.ffn = reader.integer(*file.ffn).value_or(0);
  config.seq_len = reader.size(*file.positions);
  config.vocab = reader.size("vocab_size");
  config.window = reader.windows(*file.window);
  config.norm_eps = reader.number(family.norm_eps.keys).value_or(*family.norm_eps.usual);
  if (const auto* const base = rotary_base(family)) config.rope_theta = reader.number(base->keys).value_or(*base->usual);
  const auto* const tied = reader.find("tie_word_embeddings");
  config.tied = tied ? *tied == true : *file.tied;
  if (const auto* const rotary = rotary_positions(family)) {
    config.rope_scaling = reader.scaling_of(*rotary, config.seq_len);
    config.rope_fraction = reader.fraction(*rotary);
    config.rotated_blocks = reader.rotated_blocks(*rotary, config.layers);
  }
  reader.demand_fixed(file.fixed);
  config.head_size = head_size_of(reader, config);
  if (file.experts.size() != 0) {
    config.experts.count = reader.size(file.experts);
    config.experts.chosen = reader.size(*file.experts_per_token);
    config.experts.renormalise = reader.renormalises(*file.renormalise);
  }
  reader.skip(file.unused);
  // Of a family without windows it says nothing.
  if ((*file.window).empty()) static_cast<void>(reader.find("sliding_window"));
  reader.demand_nothing_else();
  try {
    return complete(config);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), error.exit());
  }
}

ModelConfig read_model_dir(const std::filesystem::path& directory) {
  const auto file = directory / kModelConfigFile;
  std::string text;
  try {
    text = read_text_file(file);
  } catch (const Error& error) {
    throw Error(
        fmt::format("{}: {}\n  give a directory of a model as Hugging Face's library writes it", file.string(), error.what()),
        Exit::usage);
  }
  return parse_model_config(text, file.string());
}

json model_config_json(const ModelConfig& config, DType weights, const json& base) {
  const Family& family = config.family;
  const ModelFile& file = family.file;
  const auto refuse = [&](const std::string& what, const std::string& mend) {
    throw Error(
        fmt::format("a model with {} is none that Hugging Face's library has as {}\n  {}", what, *file.architecture, mend),
        Exit::usage);
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
  if (!config.window.none() && (*file.window).empty())
    refuse("a sliding window", "give --model mistral, which has one, or leave --window out");
  if (config.window.pattern().size() > 1) refuse("windows of some blocks", "give one --window for all");
  const auto* const rotary = rotary_positions(family);
  if (rotary && rotary->fraction_keys.size() == 0 && config.rope_fraction != 1)
    refuse("heads of which a part is rotated", "give --model phi3, or leave --rope-fraction out");
  const auto blocks = config.rotated_blocks.value_or(layers::RotatedBlocks());
  if (rotary && (*rotary->blocks_key).empty() && !blocks.all())
    refuse("blocks that rotate nothing", "give --model smollm3, or leave --rope-layers out");
  json out = base.is_object() ? base : json::object();
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
  if (config.head_size != 0 || *file.usual_head_dim != 0 || out.contains(std::string(*file.head_dim)))
    set(*file.head_dim, config.head_dim());
  // A table of positions has as many as were trained; rotary ones have no end.
  const auto positions = out.find(std::string(*file.positions));
  const bool keeps = rotary_positions(family) && positions != out.end() && *positions > config.seq_len;
  if (config.rope_scaling.scaling == RotaryScaling::dynamic)  // the library scales what is longer than these
    set(*file.positions, static_cast<std::int64_t>(config.rope_scaling.original));
  else if (!keeps)
    set(*file.positions, config.seq_len);
  set("vocab_size", config.vocab);
  for (const auto name : file.experts)  // each that the file has, and the older one, which every version reads
    if (name == file.experts[0] || out.contains(std::string(name))) set(name, config.experts.count);
  set(*file.experts_per_token, config.experts.chosen);
  set(*file.renormalise, config.experts.renormalise);
  set("tie_word_embeddings", config.tied);
  set(*file.window, config.window.none() ? json() : json(config.window.of(0)));
  for (const auto& [key, values] : file.fixed)
    if (!out.contains(std::string(key))) set(key, json::parse(values.front()));
  out[json::json_pointer(std::string(family.norm_eps.keys[0]))] = config.norm_eps;
  // Each spelling that the file has, and the older one, which every version reads.
  if (const auto* const number = rotary_base(family))
    for (const auto key : number->keys) {
      const json::json_pointer pointer{std::string(key)};
      if (key == number->keys[0] || out.contains(pointer)) out[pointer] = config.rope_theta;
    }
  if (rotary) {
    for (const auto key : rotary->scaling_keys) {
      // rope_parameters has the base, too, and is there only where the directory had it.
      const auto at = out.find(std::string(key));
      const auto scaling = rope_scaling_json(config.rope_scaling);
      const bool has_base = at != out.end() && at->is_object() && at->contains("rope_theta");
      if (has_base) {
        auto own = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
        for (const auto* const other : {"rope_theta", "partial_rotary_factor"})
          if (at->contains(other)) own[other] = at->at(other);
        *at = own;
      } else if (at != out.end() || key == rotary->scaling_keys[0]) {
        out[std::string(key)] = scaling;
      }
    }
    for (const auto key : rotary->fraction_keys) {
      const json::json_pointer pointer{std::string(key)};
      if (key == rotary->fraction_keys[0] || out.contains(pointer)) out[pointer] = config.rope_fraction;
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
