// Compares the hand-written patterns with PCRE2, which runs their regular expressions.
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <terrace/examples/lm/tokenizer/words/normalize.h>
#include <terrace/examples/lm/tokenizer/words/pattern.h>
#include <terrace/examples/lm/tokenizer/words/regex.h>
#include <terrace/examples/lm/tokenizer/words/unicode.h>
#include <terrace/examples/lm/tokenizer/words/words.h>

namespace terrace::lm {
namespace {

constexpr Pattern kAll[] = {Pattern::gpt2, Pattern::llama3, Pattern::qwen2, Pattern::o200k};

std::vector<std::string> words_of(Pattern pattern, std::string_view text) {
  std::vector<std::string> words;
  each_word(pattern, text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

std::vector<std::string> words_one_by_one(Pattern pattern, const std::string& text) {
  std::vector<std::string> words;
  with_pattern(pattern, [&]<Pattern kPattern>() {
    const char* const end = text.data() + text.size();
    for (const char *at = text.data(), *stop; at < end; at = stop) {
      stop = KnownWords(end).next<kPattern>(at);
      words.emplace_back(at, stop);
    }
  });
  return words;
}

class AgainstPcre2 : public testing::TestWithParam<Pattern> {
 protected:
  void SetUp() override {
    if (!Regex::available()) GTEST_SKIP() << "this build has no PCRE2";
    regex_.emplace(text_of(GetParam()));
  }
  void expect_same(std::string_view text) const {
    std::vector<std::string> expected;
    regex_->each_part(text, [&](std::string_view word) { expected.emplace_back(word); });
    ASSERT_EQ(expected, words_of(GetParam(), text)) << "of \"" << text << "\"";
  }
  std::optional<Regex> regex_;
};
INSTANTIATE_TEST_SUITE_P(Patterns, AgainstPcre2, testing::ValuesIn(kAll));

// All texts of up to four symbols: each class of characters, letters of contractions, and what the patterns name.
TEST_P(AgainstPcre2, AllShortTexts) {
  const std::vector<std::string> symbols{"a", "S", "'", " ", "\n", "1", ".", "/", "\u00e9", "\u0301", "\u017f", "\u3000"};
  std::vector<std::size_t> digits(1, 0);
  while (digits.size() <= 5) {
    std::string text;
    for (const auto digit : digits) text += symbols[digit];
    ASSERT_NO_FATAL_FAILURE(expect_same(text));
    ASSERT_NO_FATAL_FAILURE(expect_same(text + std::string(kBlockBytes, 'z')));  // within a block of word_starts.h
    std::size_t place = 0;
    while (place < digits.size() && ++digits[place] == symbols.size()) digits[place++] = 0;
    if (place == digits.size()) digits.assign(digits.size() + 1, 0);
  }
}

TEST_P(AgainstPcre2, LongDrawnTexts) {
  const std::vector<std::string> symbols{"a",
                                         "the",
                                         "THE",
                                         "'s",
                                         "'RE",
                                         "'v",
                                         "'ll",
                                         "'\u017f",
                                         " ",
                                         "   ",
                                         "\t",
                                         "\n",
                                         "\r\n",
                                         "\n\n",
                                         "12",
                                         "1234567",
                                         "...",
                                         "//",
                                         "_",
                                         "<|",
                                         "\u00e9",
                                         "\u00c9",
                                         "\u4e2d",
                                         "\u0301",
                                         "\u0661",
                                         "\u2028",
                                         "\u00a0",
                                         "\U0001f600",
                                         "\u01c5",
                                         "\u02b0",
                                         "abcdefghijklmnopqrstuvwxyz",
                                         "                  ",
                                         "{}[]();:\"'\"'"};
  std::mt19937 random(20240520);
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (auto parts = random() % 60; parts > 0; --parts) text += symbols[random() % symbols.size()];
    ASSERT_NO_FATAL_FAILURE(expect_same(text));
  }
}

// PCRE2's tables may be older: it puts a code point that they do not have in no class.
TEST_P(AgainstPcre2, EveryCodePoint) {
  const Regex unassigned("\\p{Cn}");
  std::string text;
  for (std::uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string one;
    append_utf8(one, code);
    if (UnicodeTable::get().class_of(code) != CharClass::other) {
      int parts = 0;
      unassigned.each_part(one + "\n", [&](std::string_view) { ++parts; });
      if (parts == 2) continue;
    }
    text += "a" + one + "b 'S" + one + one + " " + one + "1\n" + one;
    if (text.size() < 10000 && code != 0x10ffff) continue;
    ASSERT_NO_FATAL_FAILURE(expect_same(text)) << "up to code point " << code;
    text.clear();
  }
}

class EveryPattern : public testing::TestWithParam<Pattern> {};
INSTANTIATE_TEST_SUITE_P(Patterns, EveryPattern, testing::ValuesIn(kAll));

// All texts of up to five symbols, cut at every allowed place: letters of several kinds and of contractions, numbers, marks,
// characters that NFC joins, and bytes that are no characters.
TEST_P(EveryPattern, TextsAreCutWhereBothPartsHaveTheirWords) {
  const std::vector<std::string> symbols{"a",      "S",          "'",      " ",      "\n",     "12",
                                         ".",      "/",          "\u4e2d", "\u3002", "\u0301", "\u0915",
                                         "\u093c", "\U0001f600", "\u1100", "\xe4",   "\u00e9"};
  const auto parts = [&](std::string_view one, std::string_view other) {
    auto words = words_of(GetParam(), one);
    for (auto& word : words_of(GetParam(), other)) words.push_back(std::move(word));
    return words;
  };
  int cuts = 0;
  std::vector<std::size_t> digits(1, 0);
  while (digits.size() <= 4) {
    std::string text;
    for (const auto digit : digits) text += symbols[digit];
    text += "zzzz";  // a place needs a whole character behind it
    const auto whole = words_of(GetParam(), text);
    const auto expect_cut = [&](std::size_t at) {
      const std::string_view one(text.data(), at), other = std::string_view(text).substr(at);
      ++cuts;
      ASSERT_EQ(whole, parts(one, other)) << "\"" << text << "\" at " << at;
      ASSERT_EQ(to_nfc(text), to_nfc(one) + to_nfc(other)) << "\"" << text << "\" at " << at;
      ASSERT_EQ(words_of(GetParam(), to_nfc(text)), parts(to_nfc(one), to_nfc(other))) << "\"" << text << "\" at " << at;
    };
    for (std::size_t most = 1; most < text.size(); ++most) {
      if (cut_behind_word(text, most, [](std::size_t) { return true; }) == most) {
        ASSERT_NO_FATAL_FAILURE(expect_cut(most));
      }
    }
    std::size_t place = 0;
    while (place < digits.size() && ++digits[place] == symbols.size()) digits[place++] = 0;
    if (place == digits.size()) digits.assign(digits.size() + 1, 0);
  }
  EXPECT_GT(cuts, 10000);
  EXPECT_EQ(2U, cut_between_words("ab\ncd,efgh", 4)) << "the last place at or before";
  EXPECT_EQ(std::nullopt, cut_between_words("\u4e2d\u6587\u4e2d\u6587", 6)) << "one word";
}

TEST_P(EveryPattern, IsKnownByItsText) { EXPECT_EQ(GetParam(), known_pattern(text_of(GetParam()))); }

TEST_P(EveryPattern, WordsAreTheTextAlsoOfInvalidBytes) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 300, '\0');
    for (auto& byte : text) byte = random() % 3 == 0 ? static_cast<char>(random()) : " ab'\n1\xc3\xa9\xf0"[random() % 9];
    std::string joined;
    for (const auto& word : words_of(GetParam(), text)) {
      EXPECT_FALSE(word.empty());
      joined += word;
    }
    ASSERT_EQ(text, joined);
    ASSERT_EQ(words_one_by_one(GetParam(), text), words_of(GetParam(), text)) << "of \"" << text << "\"";
  }
}

TEST(KnownPattern, IsNoOtherExpression) { EXPECT_FALSE(known_pattern("\\s+")); }

}  // namespace
}  // namespace terrace::lm
