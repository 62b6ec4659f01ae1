// The patterns that cut a text into words, before tokens are made within each word.
//
// Four patterns of published tokenizers are written by hand (words.h); any other one is run by PCRE2 (regex.h).
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace terrace::lm {

enum class Pattern : std::uint8_t { gpt2, llama3, qwen2, o200k };

// The regular expression as files of tokenizers have it.
std::string_view text_of(Pattern pattern);
// The pattern with one of its spellings; nothing for any other regular expression.
std::optional<Pattern> known_pattern(std::string_view regex);

// Where a text may be cut so that the words of both parts are those of the whole, for all known patterns: between a letter of
// ASCII and a space with another one after it. The last such place at or before `most`; nothing if there is none.
std::optional<std::size_t> cut_at_space(std::string_view text, std::size_t most);
// The same for texts without such places: behind any letter or number, before what is neither, nor a mark, nor an apostrophe,
// and where NFC changes neither side of it. Only places that are accepted.
std::optional<std::size_t> cut_behind_word(std::string_view text, std::size_t most,
                                           const std::function<bool(std::size_t)>& accepted);
// The first rule, or else the second one.
std::optional<std::size_t> cut_between_words(std::string_view text, std::size_t most);

// Calls take(word) for each word, in order. Together they are the text.
void each_word(Pattern pattern, std::string_view text, const std::function<void(std::string_view)>& take);

}  // namespace terrace::lm
