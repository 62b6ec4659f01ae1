#include <terrace/examples/lm/tokenizer/tokens_beside.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/config_object.h>
#include <terrace/examples/lm/tokenizer/tokenizer_parts.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kNames{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
constexpr const char *kFurther = "extra_special_tokens", *kOlderFurther = "additional_special_tokens";

// Tokens in the files.
struct Beside {
  std::vector<AddedToken> listed;          // with ids
  std::vector<AddedToken> named, further;  // special tokens with a name (eos_token and the like), and special tokens in a list
};

void take_further(const ConfigObject& from, const char* key, Beside& out) {
  const auto& list = from.value(key);
  if (list.is_array())
    for (const auto& value : list) out.further.push_back(from.token(value, true));
  if (list.is_object())
    for (const auto& [name, value] : list.items()) out.named.push_back(from.token(value, true));
}

void take_named(const ConfigObject& from, Beside& out) {
  for (const auto* const key : kNames) out.named.push_back(from.token(from.value(key), true));
  for (const auto& [key, value] : from.object().items())  // image_token and the like
    if (key.ends_with("_token") && std::ranges::find(kNames, key) == kNames.end()) out.named.push_back(from.token(value, true));
  take_further(from, from.value(kFurther).empty() ? kOlderFurther : kFurther, out);
}

// `file`: the tokenizer.json without its vocabulary; `known`: its added tokens.
Beside read_beside(const std::filesystem::path& folder, const Json& file, const std::vector<AddedToken>& known) {
  const ConfigObject config(folder, "tokenizer_config.json");
  auto names = config.object();
  const auto take_names = [&](const char* from) {
    const auto& padding = file.value("padding", Json());
    if (!names.contains("pad_token") && padding.is_object()) names["pad_token"] = padding.value("pad_token", Json());
    Beside out;
    take_named({folder / from, std::move(names)}, out);
    return out;
  };
  if (!config.value("added_tokens_decoder").is_null()) {
    auto out = take_names("tokenizer_config.json");
    out.listed = config.tokens_by_id();
    return out;
  }
  const ConfigObject map(folder, "special_tokens_map.json"), added(folder, "added_tokens.json");
  for (const auto& [key, value] : map.object().items()) {  // overrides the configuration, with exceptions
    const bool is_own = key.ends_with("_token") && std::ranges::find(kNames, key) == kNames.end();
    const bool is_older = key == kOlderFurther && (names.contains(kFurther) || names.contains(key));
    if (key != kFurther && !is_older && !(is_own && names.contains(key) && names[key].is_string())) names[key] = value;
  }
  std::set<std::string> special;
  for (const auto* const key : kNames)  // here the library ignores objects of the configuration
    if (const auto value = names.value(key, nlohmann::json()); value.is_string() || map.object().contains(key))
      special.insert(token_of(value));
  auto out = take_names("special_tokens_map.json or tokenizer_config.json");
  take_further(map, kFurther, out);
  for (const auto& token : out.further) special.insert(token.content);
  std::set<TokenId> known_ids;
  for (const auto& token : known) known_ids.insert(token.id);
  for (const auto& [content, number] : added.object().items()) {
    const auto id = added.id(number);
    const bool is_special = special.contains(content);
    if (!known_ids.contains(id))  // an id in the tokenizer.json itself has priority
      out.listed.push_back({.id = id, .content = content, .normalized = !is_special, .special = is_special});
  }
  return out;
}

bool is_found_alike(AddedToken a, const AddedToken& b) {
  a.id = b.id;
  return a == b;
}

std::string flags_and_content(const AddedToken& token) {
  return fmt::format("{}{}{}{}{}{}", int{token.single_word}, int{token.strips_left}, int{token.strips_right},
                     int{token.normalized}, int{token.special}, token.content);
}

// The tokens to add or to change in the file, in the order in which the library adds them.
std::vector<AddedToken> wanted(Beside beside, const std::vector<AddedToken>& known) {
  std::vector<AddedToken> out;
  std::map<std::string_view, const AddedToken*> in_file;
  std::set<std::string> listed, named, taken;
  for (const auto& token : known) in_file.emplace(token.content, &token);
  std::ranges::stable_sort(beside.listed, {}, &AddedToken::id);
  for (auto& token : beside.listed) {
    const auto same = in_file.find(token.content);
    if (same != in_file.end() && is_found_alike(token, *same->second)) continue;
    listed.insert(token.content);
    out.push_back(std::move(token));
  }
  for (auto* const list : {&beside.named, &beside.further})  // of several equal texts the last one counts
    for (auto& token : *list) {
      if (list == &beside.named) named.insert(token.content);
      if (!in_file.contains(token.content) && !listed.contains(token.content) && taken.insert(flags_and_content(token)).second)
        out.push_back(std::move(token));
    }
  for (auto& token : out) token.special = token.special || named.contains(token.content);
  std::erase_if(out, [](const AddedToken& token) { return token.content.empty(); });
  return out;
}

Json as_json(const AddedToken& token) {
  return {{"id", token.id},
          {"content", token.content},
          {"single_word", token.single_word},
          {"lstrip", token.strips_left},
          {"rstrip", token.strips_right},
          {"normalized", token.normalized},
          {"special", token.special}};
}

}  // namespace

void add_tokens_beside(const std::filesystem::path& folder, TokenizerFile& to) {
  const auto known = read_added_tokens(to.rest.value("added_tokens", Json()));
  auto adding = wanted(read_beside(folder, to.rest, known), known);
  if (adding.empty()) return;
  std::unordered_map<std::string_view, TokenId> vocabulary;
  for (const auto& [content, id] : to.vocabulary) vocabulary.emplace(content, id);
  std::map<std::string, std::size_t> places;  // index in the file's list
  std::uint64_t next = to.vocabulary.size();
  for (const auto& token : known) {
    places.emplace(token.content, places.size());
    next = std::max<std::uint64_t>(next, std::uint64_t{token.id} + 1);
  }
  auto& list = to.rest["added_tokens"];
  if (list.is_null()) list = Json::array();
  for (auto& token : adding) {
    if (const auto place = places.find(token.content); place != places.end()) {
      token.id = list[place->second]["id"].get<TokenId>();
      list[place->second] = as_json(token);
      continue;
    }
    const auto in_vocabulary = vocabulary.find(token.content);
    if (in_vocabulary == vocabulary.end() && next > kMostTokenId)
      throw Error(fmt::format("there is no id left for the token of {}", folder.string()), ErrorKind::corrupt);
    token.id = in_vocabulary != vocabulary.end() ? in_vocabulary->second : static_cast<TokenId>(next++);
    places.emplace(token.content, list.size());
    list.push_back(as_json(token));
  }
}

}  // namespace terrace::lm
