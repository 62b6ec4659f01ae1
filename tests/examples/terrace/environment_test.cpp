// What a user sets in the environment reaches the library as options, and errors name the variable.
#include <terrace/examples/terrace/base/environment.h>

#include <gmock/gmock.h>

#include <cstdlib>

#include <terrace/examples/terrace/config/setting_flags.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

TEST(EnvironmentVariables, TheCacheIsWhereTheySay) {
  setenv("HOME", "/home/x", 1);
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(default_profile_path(), "/cache/terrace/machine.json");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(default_profile_path(), "/home/x/.cache/terrace/machine.json");
  EXPECT_EQ(default_profile_path("cuda:1"), "/home/x/.cache/terrace/machine-cuda-1.json");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(default_profile_path(), "/home/x/.cache/terrace/machine.json");
}

TEST(EnvironmentVariables, AnIoEngineIsForced) {
  setenv("TERRACE_IO_ENGINE", "threads", 1);
  const IoOptions options{.files = {}, .buffers = {}, .choice = io_of_environment()};
  EXPECT_EQ("threads", make_io_engine(options)->name());
  setenv("TERRACE_IO_ENGINE", "turbo", 1);
  EXPECT_THAT(
      with_flags(test::refusal_of([&] { make_io_engine({.files = {}, .buffers = {}, .choice = io_of_environment()}); })),
      testing::StartsWith("TERRACE_IO_ENGINE=turbo: there is no such I/O engine; use uring, "));
  unsetenv("TERRACE_IO_ENGINE");
  EXPECT_EQ("", io_of_environment().engine);
}

TEST(EnvironmentVariables, ErrorsOfTheLibraryNameThem) {
  EXPECT_EQ("set TERRACE_ATTENTION_KERNEL=warps", with_flags("set `attention-kernel`=warps"));
  EXPECT_EQ("unset TERRACE_ATTENTION", with_flags("unset `attention`"));
}

}  // namespace
}  // namespace terrace::cli
