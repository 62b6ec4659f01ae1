#include <terrace/examples/lm/tokenizer/words/pattern.h>

#include <algorithm>
#include <array>
#include <utility>

#include <terrace/examples/lm/tokenizer/words/words.h>

namespace terrace::lm {
namespace {

// If a pattern has several spellings, text_of() returns the last one.
constexpr std::array<std::pair<Pattern, std::string_view>, 6> kSpellings{{
    {Pattern::gpt2, R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {Pattern::gpt2, R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {Pattern::llama3,
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"},
    {Pattern::llama3,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::qwen2,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {Pattern::o200k,
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};

}  // namespace

std::string_view text_of(Pattern pattern) {
  std::string_view text;
  for (const auto& [known, spelling] : kSpellings)
    if (known == pattern) text = spelling;
  return text;
}

std::optional<Pattern> known_pattern(std::string_view regex) {
  for (const auto& [known, spelling] : kSpellings)
    if (spelling == regex) return known;
  return {};
}

std::optional<std::size_t> cut_at_space(std::string_view text, std::size_t most) {
  if (text.size() < 3) return {};
  const auto is_letter_at = [&](std::size_t i) {
    return (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z');
  };
  for (auto at = std::min(most, text.size() - 2); at > 0; --at)
    if (text[at] == ' ' && is_letter_at(at - 1) && is_letter_at(at + 1)) return at;
  return {};
}

// Except for the contractions of o200k, no character after a run of letters or numbers belongs to the same word. So a word ends
// here, no earlier word depends on what follows, and later words never depend on earlier text.
std::optional<std::size_t> cut_behind_word(std::string_view text, std::size_t most,
                                           const std::function<bool(std::size_t)>& accepted) {
  constexpr std::size_t kMostBytes = 4;  // of a character
  if (text.size() <= kMostBytes) return {};
  const auto& table = UnicodeTable::get();
  const char* const end = text.data() + text.size();
  for (auto at = std::min(most, text.size() - kMostBytes); at > 0; --at) {
    const auto next = character_at(text.data() + at, end);
    const auto kind = table.class_of(next.code);
    const bool continues = (static_cast<unsigned char>(text[at]) & 0xc0U) == 0x80U;  // a continuation byte
    const bool ends_word = is_white(kind) || (kind == CharClass::other && text[at] != '\'');
    if (continues || !ends_word || table.may_change(next.code)) continue;
    const auto last = last_character(text.substr(0, at));
    const auto before = table.class_of(last);
    if ((is_letter(before) || before == CharClass::number) && !table.may_change(last) && accepted(at)) return at;
  }
  return {};
}

std::optional<std::size_t> cut_between_words(std::string_view text, std::size_t most) {
  if (const auto at = cut_at_space(text, most)) return at;
  return cut_behind_word(text, most, [](std::size_t) { return true; });
}

void each_word(Pattern pattern, std::string_view text, const std::function<void(std::string_view)>& take) {
  with_pattern(pattern, [&]<Pattern kPattern>() {
    const char* const end = text.data() + text.size();
    const KnownWords words(end);
    for (const char* at = text.data(); at < end;)
      at = words.some<kPattern>(at, [&](const char* begin, const char* stop) {
        take({begin, static_cast<std::size_t>(stop - begin)});
      });
  });
}

}  // namespace terrace::lm
