#include <terrace/examples/lm/tokenizer/tokenizer_config.h>

#include <terrace/examples/lm/tokenizer/config_object.h>

namespace terrace::lm {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> template_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return {};
  for (const auto& entry : value)
    if (entry.is_object() && entry.value("name", nlohmann::json()) == "default" && entry.contains("template") &&
        entry["template"].is_string())
      return entry["template"].get<std::string>();
  return {};
}

void take_ends(const nlohmann::json& value, std::vector<TokenId>& ends) {
  if (value.is_array())
    for (const auto& one : value) take_ends(one, ends);
  if (value.is_number_unsigned() && value.get<std::uint64_t>() <= 0x7fffffffU) ends.push_back(value.get<TokenId>());
}

}  // namespace

TokenizerConfig read_tokenizer_config(const fs::path& folder) {
  TokenizerConfig out;
  out.template_file = folder / "tokenizer_config.json";
  const auto config = object_beside(out.template_file);
  for (const auto& [key, value] : config.items())
    if (key.ends_with("_token"))
      if (auto token = token_of(value); !token.empty()) out.tokens.emplace(key, std::move(token));
  if (const auto bos = out.tokens.find("bos_token"); bos != out.tokens.end()) out.bos = bos->second;
  if (const auto eos = out.tokens.find("eos_token"); eos != out.tokens.end()) out.eos = eos->second;
  if (config.contains("chat_template")) out.chat_template = template_of(config["chat_template"]);
  // The file has priority over the key, as in the library.
  if (auto text = text_beside(folder / "chat_template.jinja")) {
    out.chat_template = std::move(text);
    out.template_file = folder / "chat_template.jinja";
  }
  const auto generation = object_beside(folder / "generation_config.json");
  if (generation.contains("eos_token_id")) take_ends(generation["eos_token_id"], out.ends);
  return out;
}

}  // namespace terrace::lm
