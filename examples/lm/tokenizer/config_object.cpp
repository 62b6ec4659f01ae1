#include <terrace/examples/lm/tokenizer/config_object.h>

#include <charconv>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/fetched_file.h>
#include <terrace/core/base/json_text.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/text_file.h>

namespace terrace::lm {

namespace fs = std::filesystem;

std::optional<std::string> text_beside(const fs::path& file) {
  files::demand_fetched(file);
  std::error_code error;
  if (!fs::exists(file, error)) return {};
  try {
    return read_text_file(file);
  } catch (const Error& why) {
    throw Error(fmt::format("{} cannot be read: {}\n  make it readable, or remove it", file.string(), why.what()),
                ErrorKind::refused, why.facts());
  }
}

nlohmann::json object_beside(const fs::path& file) {
  const auto text = text_beside(file);
  if (!text) return nlohmann::json::object();
  try {
    auto object = base::parse_json(*text);
    if (!object.is_object()) throw Error("it is no object");
    return object;
  } catch (const Error& why) {
    throw Error(fmt::format("{} cannot be used: {}\n  correct it, or remove it", file.string(), why.what()), ErrorKind::corrupt,
                why.facts_at(file.string()));
  }
}

std::string token_of(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string())
    return value["content"].get<std::string>();
  return {};
}

void ConfigObject::refuse(const std::string& why) const {
  throw Error(fmt::format("{}: {}\n  bring the file back as the library wrote it", file_.string(), why), ErrorKind::corrupt);
}

const nlohmann::json& ConfigObject::value(const char* key) const {
  static const nlohmann::json none;
  const auto at = object_.find(key);
  return at == object_.end() ? none : *at;
}

std::optional<bool> ConfigObject::flag(const char* key) const {
  const auto& of = value(key);
  if (of.is_null()) return {};
  if (!of.is_boolean()) refuse(fmt::format("\"{}\" is neither true nor false", key));
  return of.get<bool>();
}

TokenId ConfigObject::id(const nlohmann::json& number) const {
  if (!number.is_number_unsigned() || number.get<std::uint64_t>() > kMostTokenId) refuse("an id is no number of a token");
  return number.get<TokenId>();
}

AddedToken ConfigObject::token(const nlohmann::json& value, bool special_if_absent) const {
  AddedToken out{.content = token_of(value), .normalized = !special_if_absent, .special = special_if_absent};
  if (!value.is_object()) return out;
  const ConfigObject entry(file_, value);
  out.single_word = entry.flag("single_word").value_or(false);
  out.strips_left = entry.flag("lstrip").value_or(false);
  out.strips_right = entry.flag("rstrip").value_or(false);
  out.special = entry.flag("special").value_or(special_if_absent);
  out.normalized = entry.flag("normalized").value_or(!out.special);
  return out;
}

std::vector<AddedToken> ConfigObject::tokens_by_id() const {
  const auto& list = value("added_tokens_decoder");
  if (!list.is_null() && !list.is_object()) refuse("\"added_tokens_decoder\" is no object");
  std::vector<AddedToken> out;
  for (const auto& [key, entry] : list.items()) {
    TokenId number = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
    if (error != std::errc{} || end != key.data() + key.size() || number > kMostTokenId)
      refuse(fmt::format("\"{}\" is no id of a token", base::printable(key)));
    auto& added = out.emplace_back(token(entry, false));
    added.id = number;
    if (added.content.empty() || !entry.is_object()) refuse(fmt::format("added token {} has no \"content\"", number));
  }
  return out;
}

}  // namespace terrace::lm
