// The patterns that cut a text into words; tokens are then made within each word.
//
// Four patterns of published tokenizers are hand-written (words.h); all others are run by PCRE2 (regex.h).
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace terrace::lm {

enum class Pattern : std::uint8_t { gpt2, llama3, qwen2, o200k };

// The regular expression as in tokenizer files.
std::string_view text_of(Pattern pattern);
// The pattern that has this spelling; nothing for any other regular expression.
std::optional<Pattern> known_pattern(std::string_view regex);

// Finds a place where a text can be cut so that the words of the two parts are those of the whole, for all known patterns:
// between an ASCII letter and a space that is followed by another letter. Returns the last such place at or before `most`;
// nothing if there is none.
std::optional<std::size_t> cut_at_space(std::string_view text, std::size_t most);
// The same for texts without such places: after a letter or number and before a character that is no letter, number, mark or
// apostrophe, if NFC changes neither side. `accepted` may refuse a place.
std::optional<std::size_t> cut_behind_word(std::string_view text, std::size_t most,
                                           const std::function<bool(std::size_t)>& accepted);
// Uses cut_at_space(), or else cut_behind_word().
std::optional<std::size_t> cut_between_words(std::string_view text, std::size_t most);

// Calls take(word) for each word, in order. Together the words are the text.
void each_word(Pattern pattern, std::string_view text, const std::function<void(std::string_view)>& take);

}  // namespace terrace::lm
