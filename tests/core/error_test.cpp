#include <terrace/core/base/error.h>
#include <terrace/core/base/refused_setting.h>

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <type_traits>

namespace terrace {

TEST(Error, CarriesTextAndKind) {
  const Error plain("it broke"), refused("bad setting", ErrorKind::refused);
  EXPECT_STREQ(plain.what(), "it broke");
  EXPECT_EQ(plain.kind(), ErrorKind::failed);
  EXPECT_EQ(refused.kind(), ErrorKind::refused);
  EXPECT_FALSE(plain.code());
  EXPECT_EQ(plain.path(), "");
  EXPECT_EQ(plain.object(), "");
}

TEST(Error, KeepsItsFactsUnderAnotherText) {
  const Error cause("full", ErrorKind::failed,
                    {.code = make_error_code(std::errc::no_space_on_device), .path = "a/b", .object = "chunk 118"});
  const Error error("commit 3: full", cause);
  EXPECT_STREQ(error.what(), "commit 3: full");
  EXPECT_EQ(error.kind(), ErrorKind::failed);
  EXPECT_EQ(error.code(), std::errc::no_space_on_device);
  EXPECT_EQ(error.path(), "a/b");
  EXPECT_EQ(error.object(), "chunk 118");
  static_assert(std::is_nothrow_copy_constructible_v<Error>);
}

TEST(RefusedSetting, IsAValueAndAnErrorOfUsage) {
  const RefusedSetting whole("pp", "`pp` 3 is odd\n  give `pp` 2 or 4\n  or another `schedule`"), short_one("dp", "`dp` is 0");
  EXPECT_STREQ(whole.what(), "`pp` 3 is odd\n  give `pp` 2 or 4\n  or another `schedule`");
  EXPECT_EQ(whole.kind(), ErrorKind::refused);
  EXPECT_EQ(whole.refusal().setting, "pp");
  EXPECT_EQ(whole.refusal().why, "`pp` 3 is odd");
  EXPECT_EQ(whole.refusal().nearest, "give `pp` 2 or 4\n  or another `schedule`");
  EXPECT_EQ(short_one.refusal().why, "`dp` is 0");
  EXPECT_EQ(short_one.refusal().nearest, "");
}

TEST(Error, OfTheSystemHasItsCodeAndPath) {
  const auto bare = errno_error(ENOSPC, "a/b");
  EXPECT_STREQ(bare.what(), "No space left on device (errno 28)");
  EXPECT_EQ(bare.code(), std::errc::no_space_on_device);
  EXPECT_EQ(bare.path(), "a/b");
  EXPECT_STREQ(errno_error(ENOSPC, "a/b", "a/b cannot be written", "free some space").what(),
               "a/b cannot be written: No space left on device (errno 28)\n  free some space");
}

TEST(Error, GetsThePathThatItsCauseLacks) {
  EXPECT_EQ(Error("a/b: bad", Error("bad", ErrorKind::corrupt), "a/b").path(), "a/b");
  EXPECT_EQ(Error("a/b: bad", errno_error(EIO, "a/b/c"), "a/b").path(), "a/b/c");
  EXPECT_EQ(Error("a/b: bad", errno_error(EIO, ""), "a/b").code(), std::errc::io_error);
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
