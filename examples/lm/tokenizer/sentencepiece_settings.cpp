#include <terrace/examples/lm/tokenizer/sentencepiece_settings.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/examples/lm/tokenizer/config_object.h>

namespace terrace::lm {
namespace {

namespace fs = std::filesystem;

void take_special(const nlohmann::json& value, std::vector<std::string>& special) {
  if (auto token = token_of(value); !token.empty() && std::ranges::find(special, token) == special.end())
    special.push_back(std::move(token));
}

// Reads bos_token, eos_token, pad_token, …, and the lists of further tokens.
void take_names(const ConfigObject& from, SentencePieceSettings& out) {
  for (const auto& [key, value] : from.object().items()) {
    if (key.ends_with("_token")) take_special(value, out.special);
    if ((key == "additional_special_tokens" || key == "extra_special_tokens") && value.is_array())
      for (const auto& one : value) take_special(one, out.special);
  }
  const auto named = [&](const char* key, std::string& token) {
    if (token.empty()) token = token_of(from.value(key));
  };
  named("bos_token", out.begin);
  named("eos_token", out.end);
  named("unk_token", out.unknown);
}

void add(AddedToken token, SentencePieceSettings& out) {
  const auto same = [&](const AddedToken& other) { return other.id == token.id || other.content == token.content; };
  if (std::ranges::none_of(out.added, same)) out.added.push_back(std::move(token));
}

}  // namespace

std::string SentencePieceSettings::text() const {
  auto text = fmt::format("{} {} {} {}|{}|{}|{}", sets_begin, sets_end, always_prefixed,
                          prefixed ? std::to_string(static_cast<int>(*prefixed)) : "-", begin, end, unknown);
  for (const auto& token : special) text += "|" + token;
  for (const auto& token : added)
    text += fmt::format("|{} {} {}{}{}{}", token.id, token.content, token.single_word, token.strips_left, token.strips_right,
                        token.special);
  return text;
}

SentencePieceSettings read_sentencepiece_settings(const fs::path& folder) {
  SentencePieceSettings out;
  const ConfigObject config(folder, "tokenizer_config.json"), map(folder, "special_tokens_map.json"),
      added(folder, "added_tokens.json");
  out.sets_begin = config.flag("add_bos_token").value_or(false);
  out.sets_end = config.flag("add_eos_token").value_or(false);
  out.always_prefixed = config.flag("legacy").value_or(false);
  out.prefixed = config.flag("add_prefix_space");
  take_names(config, out);
  take_names(map, out);
  for (auto& token : config.tokens_by_id()) add(std::move(token), out);
  for (const auto& [content, id] : added.object().items()) {
    const bool special = std::ranges::find(out.special, content) != out.special.end();
    if (!content.empty()) add({.id = added.id(id), .content = content, .normalized = false, .special = special}, out);
  }
  return out;
}

}  // namespace terrace::lm
