#include <terrace/examples/lm/models/model_dir.h>

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/fetched_file.h>
#include <terrace/core/base/json_text.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/models/config_reader.h>

namespace terrace::lm {
namespace {

using nlohmann::json;

constexpr const char* kMend = "\n  bring the file back as the library wrote it";

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

ModelConfig parse_model_config(std::string_view text, const std::string& name, std::vector<std::string>* unread) {
  json values;
  try {
    values = base::parse_json(text);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}{}", name, error.what(), kMend), ErrorKind::corrupt, {.path = name});
  }
  if (!values.is_object())
    throw Error(fmt::format("{}: it is no JSON object{}", name, kMend), ErrorKind::corrupt, {.path = name});
  ConfigReader reader(language_model_in(std::move(values)), name);
  const Family& family = family_of(reader);
  reader.complete_for(family);
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
  config.dtype = reader.dtype();
  config.norm_eps = reader.number(family.norm_eps.keys).value_or(*family.norm_eps.usual);
  if (const auto* const base = rotary_base(family)) config.rope_theta = reader.number(base->keys).value_or(*base->usual);
  config.query_scalar = reader.query_scalar(family.scales);
  config.attention_cap = reader.cap(family.scales.attention_cap);
  config.logit_cap = reader.cap(family.scales.logit_cap);
  config.tied = reader.truth("tie_word_embeddings", *file.tied);
  config.activation = reader.activation(family);
  config.attention_bias = reader.truth(*file.attention_bias);
  config.mlp_bias = reader.truth(*file.mlp_bias);
  if (const auto* const rotary = rotary_positions(family)) {
    config.rope_scaling = reader.scaling_of(*rotary, config.seq_len);
    config.rope_fraction = reader.fraction(*rotary);
    config.window_rope_theta = reader.number(rotary->window_base_keys).value_or(*rotary->window_base);
    config.rotated_blocks = reader.rotated_blocks(*rotary, config.layers);
  }
  const auto usual_blocks = [&] {
    return all_but_every(rotary_positions(family) ? *rotary_positions(family)->plain_every : 0, config.layers);
  };
  config.window = reader.windows(file.window, config.layers, config.rotated_blocks ? *config.rotated_blocks : usual_blocks());
  reader.demand_fixed(file.fixed);
  config.head_size = head_size_of(reader, config);
  if (file.experts.size() != 0) {
    config.experts.count = reader.size(file.experts);
    config.experts.chosen = reader.size(*file.experts_per_token);
    config.experts.renormalise = reader.truth(*file.renormalise).value_or(true);
  }
  reader.skip(file.unused);
  // In a family without windows, sliding_window has no effect.
  if ((*file.window.size).empty()) static_cast<void>(reader.find("sliding_window"));
  auto left = reader.demand_nothing_else(family);
  if (unread) *unread = std::move(left);
  try {
    return complete(config);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name, error.what()), error, name);
  }
}

ModelConfig read_model_dir(const std::filesystem::path& directory, std::vector<std::string>* unread) {
  const auto name = directory.string();
  if (std::error_code failed; !name.starts_with('.') && !directory.is_absolute() && !std::filesystem::exists(directory, failed))
    throw base::Refused(
        fmt::format("there is no directory {0}\n  terrace downloads nothing: fetch the model first, for example by hf "
                    "download {0} --local-dir DIR, and give its directory",
                    name));
  const auto file = directory / kModelConfigFile;
  files::demand_fetched(file);
  std::string text;
  try {
    text = read_text_file(file);
  } catch (const Error& error) {
    throw Error(
        fmt::format("{}: {}\n  give a directory of a model as Hugging Face's library writes it", file.string(), error.what()),
        ErrorKind::refused, error.facts());
  }
  return parse_model_config(text, file.string(), unread);
}

}  // namespace terrace::lm
