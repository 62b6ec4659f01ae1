#include <terrace/core/error.h>

#include <gtest/gtest.h>

#include <cerrno>

namespace terrace {

TEST(Error, CarriesTextAndExitCode) {
  const Error plain("it broke"), usage("bad flag", Exit::usage);
  EXPECT_STREQ(plain.what(), "it broke");
  EXPECT_EQ(plain.exit(), Exit::runtime);
  EXPECT_EQ(usage.exit(), Exit::usage);
  EXPECT_EQ(static_cast<int>(Exit::interrupted), 75);
}

TEST(Error, DescribesErrno) {
  EXPECT_EQ(describe_errno(ENOSPC), "No space left on device (errno 28)");
  EXPECT_NE(describe_errno(99999).find("(errno 99999)"), std::string::npos);
}

}  // namespace terrace
