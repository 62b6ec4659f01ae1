#include <terrace/examples/lm/tokenizer/sentencepiece_settings.h>

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/printable.h>
#include <terrace/examples/lm/tokenizer/config_object.h>
#include <terrace/examples/lm/tokenizer/token_id.h>

namespace terrace::lm {
namespace {

namespace fs = std::filesystem;

constexpr const char *kConfig = "tokenizer_config.json", *kMap = "special_tokens_map.json", *kAdded = "added_tokens.json";

// One of the files, whose faults name it.
struct Beside {
  fs::path file;
  nlohmann::json object;

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(fmt::format("{}: {}\n  bring the file back as the library wrote it", file.string(), why), Exit::corrupt);
  }
  std::optional<bool> flag(const char* key) const {
    const auto at = object.find(key);
    if (at == object.end() || at->is_null()) return {};
    if (!at->is_boolean()) refuse(fmt::format("\"{}\" is neither true nor false", key));
    return at->get<bool>();
  }
  TokenId id(const nlohmann::json& number) const {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() > kMostTokenId) refuse("an id is no number of a token");
    return number.get<TokenId>();
  }
};

Beside beside(const fs::path& folder, const char* name) { return {folder / name, object_beside(folder / name)}; }

void take_special(const nlohmann::json& value, std::vector<std::string>& special) {
  if (auto token = token_of(value); !token.empty() && std::ranges::find(special, token) == special.end())
    special.push_back(std::move(token));
}

// bos_token, eos_token, pad_token, …, and lists of further ones.
void take_names(const Beside& from, SentencePieceSettings& out) {
  for (const auto& [key, value] : from.object.items()) {
    if (key.ends_with("_token")) take_special(value, out.special);
    if ((key == "additional_special_tokens" || key == "extra_special_tokens") && value.is_array())
      for (const auto& one : value) take_special(one, out.special);
  }
  const auto named = [&](const char* key, std::string& token) {
    if (const auto at = from.object.find(key); token.empty() && at != from.object.end()) token = token_of(*at);
  };
  named("bos_token", out.begin);
  named("eos_token", out.end);
  named("unk_token", out.unknown);
}

void add(AddedToken token, SentencePieceSettings& out) {
  const auto same = [&](const AddedToken& other) { return other.id == token.id || other.content == token.content; };
  if (std::ranges::none_of(out.added, same)) out.added.push_back(std::move(token));
}

// added_tokens_decoder has them by their ids, with how they are found.
void take_decoder(const Beside& from, SentencePieceSettings& out) {
  const auto at = from.object.find("added_tokens_decoder");
  if (at == from.object.end() || at->is_null()) return;
  if (!at->is_object()) from.refuse("\"added_tokens_decoder\" is no object");
  for (const auto& [key, value] : at->items()) {
    AddedToken token;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token.id);
    if (error != std::errc{} || end != key.data() + key.size() || token.id > kMostTokenId)
      from.refuse(fmt::format("\"{}\" is no id of a token", printable(key)));
    token.content = token_of(value);
    if (token.content.empty() || !value.is_object()) from.refuse(fmt::format("added token {} has no \"content\"", token.id));
    const Beside entry{from.file, value};
    token.single_word = entry.flag("single_word").value_or(false);
    token.strips_left = entry.flag("lstrip").value_or(false);
    token.strips_right = entry.flag("rstrip").value_or(false);
    token.special = entry.flag("special").value_or(false);
    add(std::move(token), out);
  }
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
  const auto config = beside(folder, kConfig), map = beside(folder, kMap), added = beside(folder, kAdded);
  out.sets_begin = config.flag("add_bos_token").value_or(false);
  out.sets_end = config.flag("add_eos_token").value_or(false);
  out.always_prefixed = config.flag("legacy").value_or(false);
  out.prefixed = config.flag("add_prefix_space");
  take_names(config, out);
  take_names(map, out);
  take_decoder(config, out);
  for (const auto& [content, id] : added.object.items()) {
    const bool special = std::ranges::find(out.special, content) != out.special.end();
    if (!content.empty()) add({.id = added.id(id), .content = content, .normalized = false, .special = special}, out);
  }
  return out;
}

}  // namespace terrace::lm
