// What is promised: a file comes whole or with a reason, and what is no UTF-8 is told from what is.
#include <terrace/core/text_file.h>

#include <gtest/gtest.h>

#include <terrace/core/error.h>

namespace terrace {
namespace {

std::string why_not(const char* file) {
  try {
    read_text_file(file);
  } catch (const Error& error) {
    return error.what();
  }
  return "it was read";
}

TEST(TextFile, AFileIsReadWholeOrTheReasonIsSaid) {
  EXPECT_EQ("", read_text_file("/dev/null"));
  EXPECT_NE(std::string::npos, read_text_file("/proc/self/status").find("Name:"));  // of no size that stat knows
  EXPECT_EQ("No such file or directory (errno 2)", why_not("/nowhere/at/all"));
  EXPECT_EQ("it is a directory", why_not("/"));
  EXPECT_EQ("it is larger than 64.0 MiB", why_not("/dev/zero"));
  EXPECT_EQ("Input/output error (errno 5)", why_not("/proc/self/mem"));  // nothing is mapped at its beginning
}

TEST(TextFile, Utf8IsWhatTheStandardSays) {
  for (const auto* const good : {"", "plain", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEF\xBF\xBF",
                                 "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "gr\xC3\xBC\xC3\x9F"})
    EXPECT_TRUE(is_utf8(good)) << testing::PrintToString(good);
  for (const auto* const bad : {"l\xE4ufe", "\x80", "\xC1\x81", "\xC3", "\xE0\x9F\xBF", "\xE2\x82", "\xED\xA0\x80",
                                "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3\x28", "\xE2\x28\xA1"})
    EXPECT_FALSE(is_utf8(bad)) << testing::PrintToString(bad);
}

}  // namespace
}  // namespace terrace
