// Regular expressions of tokenizers on long words, and on texts that they can match in too many ways.
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/words/regex.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

class RegexTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!Regex::available()) GTEST_SKIP() << "this build has no PCRE2";
  }
};

std::vector<std::size_t> sizes_of(const Regex& regex, std::string_view text) {
  std::vector<std::size_t> out;
  regex.each_part(text, [&](std::string_view part) { out.push_back(part.size()); });
  return out;
}

TEST_F(RegexTest, ARepeatedGroupMatchesLongWords) {
  const Regex regex("(?:\\p{L}\\p{M}*)+|\\p{N}| ");
  for (const std::size_t letters : {100, 2'000, 3'000, 100'000, 1'000'000}) {
    const std::string word(letters, 'a');
    EXPECT_EQ((std::vector<std::size_t>{letters, 1, letters}), sizes_of(regex, word + " " + word));
    std::thread([&] { EXPECT_EQ((std::vector<std::size_t>{letters}), sizes_of(regex, word)); }).join();
  }
  // A long text before a long word is searched place by place.
  const Regex only_letters("(?:[a-z]|[A-Z])+");
  EXPECT_EQ((std::vector<std::size_t>{1'000'000, 5'000}),
            sizes_of(only_letters, std::string(1'000'000, '1') + std::string(5'000, 'a')));
  EXPECT_EQ((std::vector<std::size_t>{1, 2'500}), sizes_of(only_letters, "\xff" + std::string(2'500, 'a')));
}

TEST_F(RegexTest, WhatCanMatchInTooManyWaysIsRefusedByItsName) {
  const auto why = [](const char* expression, const std::string& text) -> std::string {
    return test::error_of(ErrorKind::failed, [&] { sizes_of(Regex(expression), text); });
  };
  const std::string at_once(60, 'a');
  EXPECT_THAT(
      why("(?:a+)+b|c", at_once),
      testing::HasSubstr("expression (?:a+)+b|c failed on a text of 60 bytes: it tries too many ways to match\n  give "));
  // No single word takes too long, but all words together do.
  std::string in_turn;
  for (int i = 0; i < 1'000; ++i) in_turn += std::string(18, 'a') + " ";
  EXPECT_THAT(why("(?:a|a)*b| +", in_turn), testing::HasSubstr("it tries too many ways to match"));
}

}  // namespace
}  // namespace terrace::lm
