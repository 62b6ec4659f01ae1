// A text from a file is shown in a terminal without control characters, as UTF-8, and no longer than a line.
#include <terrace/core/base/printable.h>

#include <gtest/gtest.h>

#include <terrace/core/base/text_file.h>

namespace terrace {
namespace {

TEST(Printable, PlainTextsStay) {
  for (const auto* const text : {"", "wte.weight", "a b\"c'", "gr\xC3\xBC\xC3\x9F, \xE6\x97\xA5"})
    EXPECT_EQ(text, base::printable(text));
}

TEST(Printable, ControlCharactersAreEscapedAndBrokenUtf8IsReplaced) {
  EXPECT_EQ("\\x1b[31m\\x07\\x00\\x7f", base::printable(std::string_view("\x1b[31m\x07\0\x7f", 8)));
  EXPECT_EQ("a\\nb\\x0d\\x09", base::printable("a\nb\r\t"));
  EXPECT_EQ("\\u009b2J", base::printable("\xC2\x9B"
                                         "2J"));  // a terminal treats it like ESC [
  EXPECT_EQ("\\u202eabc\\u2028", base::printable("\xE2\x80\xAE"
                                                 "abc\xE2\x80\xA8"));
  EXPECT_EQ(
      "\xEF\xBF\xBD"
      "a\xEF\xBF\xBD",
      base::printable("\xFF"
                      "a\xC3"));
  EXPECT_EQ("one\n\ttwo\\x1b", base::printable_lines("one\n\ttwo\x1b"));
}

TEST(Printable, TheMiddleOfALongTextIsCutBetweenCharacters) {
  std::string text(1'000'000, 'a');
  text += "end";
  const auto cut = base::printable(text);
  EXPECT_LT(cut.size(), 130U);
  EXPECT_TRUE(cut.starts_with("aaa") && cut.ends_with("end") && cut.find("1000003 bytes") != std::string::npos) << cut;
  std::string wide;
  for (int i = 0; i < 1000; ++i) wide += "\xE6\x97\xA5";
  EXPECT_TRUE(is_utf8(base::printable(wide)));
  EXPECT_EQ(std::string::npos, base::printable(wide).find("\xEF\xBF\xBD"));
  EXPECT_LT(base::printable(std::string(1000, '\xBF')).size(), 600U);  // only continuation bytes
}

}  // namespace
}  // namespace terrace
