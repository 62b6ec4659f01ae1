// The meaning of a tokenizer.json's parts other than its model. An unsupported part that would change the ids is refused by
// name; an unsupported decoder is only refused when it is used.
//
// Internal to the tokenizer. Threads: any; values.
// Errors:  Error(ErrorKind::refused) with the name of a part that is not supported; Error(ErrorKind::corrupt) for a part
//          without its fields.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <terrace/examples/lm/tokenizer/added_tokens.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/tokenizer_file.h>
#include <terrace/examples/lm/tokenizer/words/pattern.h>
#include <terrace/examples/lm/tokenizer/words/regex.h>

namespace terrace::lm {

struct NfcStep {};
struct PrependStep {
  std::string text;  // added before a part that is not empty
};
struct ReplaceStep {
  std::string from, to;
};
struct Normalizer {
  std::vector<std::variant<NfcStep, PrependStep, ReplaceStep>> steps;
  // `goes_on`: the text continues another one, so nothing is added before it.
  [[nodiscard]] std::string apply(std::string_view text, bool goes_on = false) const;
};

// A text that ends or begins a word. If it is repeated, each of the others is a word of its own.
struct Separator {
  std::string text;
  bool begins = false;
};
// Replaces spaces by another character and adds one before a text, or before each part of it between added tokens.
struct Metaspace {
  enum class Prefix : std::uint8_t { never, first, always };
  std::string replacement;
  Prefix prefix = Prefix::always;
};

// Cuts a part of the text into words: each step cuts the words of the previous one.
struct PreTokenizer {
  std::optional<Metaspace> metaspace;  // applied before the steps
  std::vector<std::variant<Pattern, Regex, Separator>> steps;
  bool byte_level = false;
  bool prefix_space = false;  // adds a space before a part that does not begin with one
};

struct Decoder {
  std::vector<std::pair<std::string, std::string>> replacements;
  Stripped stripped;
  std::string unknown;  // the name of an unsupported decoder
};

// The ids before and after a text that is encoded with its template.
struct Template {
  std::vector<TokenId> before, after;
};

Normalizer read_normalizer(const nlohmann::ordered_json& part);
PreTokenizer read_pre_tokenizer(const nlohmann::ordered_json& part);
Decoder read_decoder(const nlohmann::ordered_json& part);
Template read_template(const nlohmann::ordered_json& part);
std::vector<AddedToken> read_added_tokens(const nlohmann::ordered_json& part);

// A series of replacements may double a text each time. No real tokenizer makes a text of `bytes` bytes longer than this;
// replace_all() refuses a result longer than `most`.
std::size_t longest_replaced(std::size_t bytes);
void replace_all(std::string& text, const std::string& from, const std::string& to, std::size_t most);

void each_word(const Separator& separator, std::string_view part, const std::function<void(std::string_view)>& take);

// The value of a key; if it is missing, the error has its name.
const nlohmann::ordered_json& member(const nlohmann::ordered_json& object, const char* key);
std::string text_member(const nlohmann::ordered_json& object, const char* key);
bool flag_member(const nlohmann::ordered_json& object, const char* key, bool if_absent);
bool is_absent(const nlohmann::ordered_json& object, const char* key);  // or null
TokenId id_of_number(const nlohmann::ordered_json& number);

}  // namespace terrace::lm
