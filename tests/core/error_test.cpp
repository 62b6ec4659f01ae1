#include <terrace/core/base/error.h>
#include <terrace/core/base/refused_setting.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace terrace {

TEST(Error, CarriesTextAndExitCode) {
  const Error plain("it broke"), usage("bad flag", Exit::usage);
  EXPECT_STREQ(plain.what(), "it broke");
  EXPECT_EQ(plain.exit(), Exit::runtime);
  EXPECT_EQ(usage.exit(), Exit::usage);
  EXPECT_EQ(static_cast<int>(Exit::interrupted), 75);
}

TEST(RefusedSetting, IsAValueAndAnErrorOfUsage) {
  const RefusedSetting whole("pp", "`pp` 3 is odd\n  give `pp` 2 or 4\n  or another `schedule`"), short_one("dp", "`dp` is 0");
  EXPECT_STREQ(whole.what(), "`pp` 3 is odd\n  give `pp` 2 or 4\n  or another `schedule`");
  EXPECT_EQ(whole.exit(), Exit::usage);
  EXPECT_EQ(whole.refusal().setting, "pp");
  EXPECT_EQ(whole.refusal().why, "`pp` 3 is odd");
  EXPECT_EQ(whole.refusal().nearest, "give `pp` 2 or 4\n  or another `schedule`");
  EXPECT_EQ(short_one.refusal().why, "`dp` is 0");
  EXPECT_EQ(short_one.refusal().nearest, "");
}

TEST(Error, DescribesErrno) {
  EXPECT_EQ(describe_errno(ENOSPC), "No space left on device (errno 28)");
  EXPECT_NE(describe_errno(99999).find("(errno 99999)"), std::string::npos);
}

TEST(Error, DescribesErrorsOfTheFileSystemWithoutALibrarysWords) {
  const auto code = std::make_error_code(std::errc::permission_denied);
  EXPECT_EQ(describe(std::filesystem::filesystem_error("cannot remove", "some/path", code)),
            "some/path: Permission denied (errno 13)");
  EXPECT_EQ(describe(std::filesystem::filesystem_error("cannot get", code)),
            "the current directory: Permission denied (errno 13)");
  EXPECT_EQ(describe(Error("it broke")), "it broke");
}

}  // namespace terrace
