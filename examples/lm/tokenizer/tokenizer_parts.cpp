#include <terrace/examples/lm/tokenizer/tokenizer_parts.h>

#include <set>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/tokenizer/words/normalize.h>

namespace terrace::lm {
namespace {

using Json = nlohmann::ordered_json;

[[noreturn]] void refuse(const std::string& what, const std::string& name) {
  throw base::Refused(fmt::format("{} \"{}\" is not supported, and it would change the tokens", what, base::printable(name)));
}
[[noreturn]] void refuse_form(const std::string& why) { throw Error(why, ErrorKind::corrupt); }

// The members of a Sequence, or `part` itself if it is not one.
std::vector<const Json*> steps_of(const Json& part, const char* list) {
  if (part.is_null()) return {};
  if (text_member(part, "type") != "Sequence") return {&part};
  const auto& steps = member(part, list);
  if (!steps.is_array()) refuse_form(fmt::format("\"{}\" is no list", list));
  std::vector<const Json*> all;
  for (const auto& step : steps)
    for (const auto* inner : steps_of(step, list)) all.push_back(inner);
  return all;
}

std::string text_pattern(const Json& step, const char* what) {
  const auto& pattern = member(step, "pattern");
  if (!pattern.is_object() || !pattern.contains("String")) refuse(what, "Regex");
  return text_member(pattern, "String");
}

// x{1,3}+ is possessive in some libraries and a repeated group in others, so the ids would differ.
bool has_repeated_count(std::string_view regex) {
  for (auto end = regex.find("}+"); end != std::string_view::npos; end = regex.find("}+", end + 1)) {
    const auto begin = regex.rfind('{', end);
    if (begin != std::string_view::npos && begin + 1 < end && regex[begin + 1] >= '0' && regex[begin + 1] <= '9' &&
        (begin < 2 || regex[begin - 2] != '\\'))
      return true;
  }
  return false;
}

void read_split(const Json& step, PreTokenizer& out) {
  const auto& pattern = member(step, "pattern");
  if (pattern.is_object() && pattern.contains("String")) {
    const auto behavior = text_member(step, "behavior");
    if ((behavior != "MergedWithPrevious" && behavior != "MergedWithNext") || flag_member(step, "invert", false))
      refuse("the behavior of the pre-tokenizer Split at a text,", behavior);
    out.steps.emplace_back(Separator{.text = text_member(pattern, "String"), .begins = behavior == "MergedWithNext"});
    return;
  }
  if (!pattern.is_object() || !pattern.contains("Regex")) refuse("the pattern of the pre-tokenizer", "Split");
  const auto regex = text_member(pattern, "Regex");
  if (has_repeated_count(regex)) refuse("the pattern of the pre-tokenizer Split with", "}+");
  const auto known = known_pattern(regex);
  const auto behavior = text_member(step, "behavior");
  // A known pattern matches the whole text, so nothing between matches can be removed.
  const bool keeps_all = behavior == "Isolated" || (known && behavior == "Removed" && flag_member(step, "invert", false));
  if (!keeps_all) refuse("the behavior of the pre-tokenizer Split,", behavior);
  if (known) {
    out.steps.emplace_back(*known);
  } else {
    out.steps.emplace_back(Regex(regex));
  }
}

Metaspace read_metaspace(const Json& step) {
  Metaspace out{.replacement = text_member(step, "replacement")};
  if (out.replacement.empty()) refuse_form("\"replacement\" is empty");
  if (is_absent(step, "prepend_scheme")) {  // older versions of the library
    out.prefix = flag_member(step, "add_prefix_space", true) ? Metaspace::Prefix::always : Metaspace::Prefix::never;
    return out;
  }
  const auto scheme = text_member(step, "prepend_scheme");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    refuse("the prepend_scheme of the pre-tokenizer Metaspace", scheme);
  out.prefix = scheme == "always"  ? Metaspace::Prefix::always
               : scheme == "first" ? Metaspace::Prefix::first
                                   : Metaspace::Prefix::never;
  return out;
}

void append_ids(const Json& part, const Json& tokens, std::vector<TokenId>& ids) {
  const auto name = text_member(part, "id");
  if (!tokens.is_object() || !tokens.contains(name))
    refuse_form(fmt::format("the template has no token \"{}\"", base::printable(name)));
  for (const auto& id : member(tokens[name], "ids")) ids.push_back(id_of_number(id));
}

}  // namespace

const Json& member(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key)) refuse_form(fmt::format("\"{}\" is missing", key));
  return object[key];
}

std::string text_member(const Json& object, const char* key) {
  const auto& text = member(object, key);
  if (!text.is_string()) refuse_form(fmt::format("\"{}\" is no text", key));
  return text.get<std::string>();
}

bool is_absent(const Json& object, const char* key) { return !object.contains(key) || object[key].is_null(); }

bool flag_member(const Json& object, const char* key, bool if_absent) {
  if (is_absent(object, key)) return if_absent;
  if (!object[key].is_boolean()) refuse_form(fmt::format("\"{}\" is neither true nor false", key));
  return object[key].get<bool>();
}

TokenId id_of_number(const Json& number) {
  if (!number.is_number_unsigned() || number.get<std::uint64_t>() > kMostTokenId) refuse_form("an id is no number of a token");
  return number.get<TokenId>();
}

std::size_t longest_replaced(std::size_t bytes) { return 16 * bytes + 4096; }

void replace_all(std::string& text, const std::string& from, const std::string& to, std::size_t most) {
  if (from.empty()) return;
  std::string out;
  std::size_t done = 0;
  for (auto at = text.find(from); at != std::string::npos; at = text.find(from, done)) {
    if (out.size() + (at - done) + to.size() > most)
      refuse_form(fmt::format("its replacements make a text longer than {} bytes", most));
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  text = out.append(text, done);
}

Normalizer read_normalizer(const Json& part) {
  Normalizer out;
  for (const auto* step : steps_of(part, "normalizers")) {
    const auto type = text_member(*step, "type");
    if (type == "NFC") {
      out.steps.emplace_back(NfcStep{});
    } else if (type == "Prepend") {
      out.steps.emplace_back(PrependStep{text_member(*step, "prepend")});
    } else if (type == "Replace") {
      out.steps.emplace_back(
          ReplaceStep{text_pattern(*step, "the pattern of the normalizer Replace,"), text_member(*step, "content")});
    } else {
      refuse("the normalizer", type);
    }
  }
  return out;
}

std::string Normalizer::apply(std::string_view text, bool goes_on) const {
  std::string out(text);
  const auto most = longest_replaced(text.size());
  for (const auto& step : steps) {
    if (std::holds_alternative<NfcStep>(step) && !is_surely_nfc(out)) out = to_nfc(out);
    if (const auto* const prepend = std::get_if<PrependStep>(&step); prepend && !out.empty() && !goes_on)
      out = prepend->text + out;
    if (const auto* const replace = std::get_if<ReplaceStep>(&step)) replace_all(out, replace->from, replace->to, most);
  }
  return out;
}

PreTokenizer read_pre_tokenizer(const Json& part) {
  PreTokenizer out;
  for (const auto* step : steps_of(part, "pretokenizers")) {
    const auto type = text_member(*step, "type");
    if (out.byte_level) refuse("after ByteLevel, the pre-tokenizer", type);
    if (out.metaspace) refuse("after Metaspace, the pre-tokenizer", type);
    if (type == "Split") {
      read_split(*step, out);
    } else if (type == "Metaspace") {
      if (!out.steps.empty()) refuse("after another step, the pre-tokenizer", type);
      out.metaspace = read_metaspace(*step);
      if (flag_member(*step, "split", true))
        out.steps.emplace_back(Separator{.text = out.metaspace->replacement, .begins = true});
    } else if (type == "ByteLevel") {
      out.byte_level = true;
      out.prefix_space = flag_member(*step, "add_prefix_space", true);
      if (out.prefix_space && !out.steps.empty())
        refuse("after another step, the pre-tokenizer ByteLevel with", "add_prefix_space");
      if (flag_member(*step, "use_regex", true)) out.steps.emplace_back(Pattern::gpt2);
    } else {
      refuse("the pre-tokenizer", type);
    }
  }
  return out;
}

void each_word(const Separator& separator, std::string_view part, const std::function<void(std::string_view)>& take) {
  const auto& [text, begins] = separator;
  if (text.empty()) return take(part);
  for (std::size_t begin = 0; begin < part.size();) {
    auto end = part.find(text, begins && part.substr(begin).starts_with(text) ? begin + text.size() : begin);
    if (end == std::string_view::npos)
      end = part.size();
    else if (!begins)
      end += text.size();
    take(part.substr(begin, end - begin));
    begin = end;
  }
}

Decoder read_decoder(const Json& part) {
  Decoder out;
  for (const auto* step : steps_of(part, "decoders")) {
    const auto type = text_member(*step, "type");
    if (type == "Replace" && member(*step, "pattern").contains("String")) {
      out.replacements.emplace_back(text_pattern(*step, "Replace"), text_member(*step, "content"));
    } else if (type == "Strip") {
      const auto count = [&](const char* key) { return static_cast<std::size_t>(id_of_number(member(*step, key))); };
      out.stripped.text = text_member(*step, "content");
      out.stripped.at_front = count("start");
      out.stripped.at_end = count("stop");
    } else if (type != "ByteLevel" && type != "ByteFallback" && type != "Fuse") {
      out.unknown = type;
    }
  }
  return out;
}

Template read_template(const Json& part) {
  Template out;
  for (const auto* step : steps_of(part, "processors")) {
    const auto type = text_member(*step, "type");
    if (type == "ByteLevel") continue;
    if (type == "BertProcessing" || type == "RobertaProcessing") {
      const auto id = [&](const char* key) {
        const auto& token = member(*step, key);
        if (!token.is_array() || token.size() != 2) refuse_form(fmt::format("\"{}\" of {} is no token with its id", key, type));
        return id_of_number(token[1]);
      };
      out.before.push_back(id("cls"));
      out.after.push_back(id("sep"));
    } else if (type == "TemplateProcessing") {
      bool after = false;
      const auto& single = member(*step, "single");
      if (!single.is_array()) refuse_form("\"single\" is no list");
      for (const auto& piece : single) {
        if (piece.is_object() && piece.contains("Sequence")) {
          after = true;
        } else {
          append_ids(member(piece, "SpecialToken"), member(*step, "special_tokens"), after ? out.after : out.before);
        }
      }
    } else {
      refuse("the post-processor", type);
    }
  }
  return out;
}

std::vector<AddedToken> read_added_tokens(const Json& part) {
  std::vector<AddedToken> tokens;
  if (part.is_null()) return tokens;
  if (!part.is_array()) refuse_form("\"added_tokens\" is no list");
  std::set<std::string> contents;
  for (const auto& token : part) {
    const bool special = flag_member(token, "special", false);
    tokens.push_back({.id = id_of_number(member(token, "id")),
                      .content = text_member(token, "content"),
                      .single_word = flag_member(token, "single_word", false),
                      .strips_left = flag_member(token, "lstrip", false),
                      .strips_right = flag_member(token, "rstrip", false),
                      .normalized = flag_member(token, "normalized", !special),
                      .special = special});
    if (!contents.insert(tokens.back().content).second)
      refuse_form(fmt::format("the added token \"{}\" stands twice", base::printable(tokens.back().content)));
  }
  return tokens;
}

}  // namespace terrace::lm
