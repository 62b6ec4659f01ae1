// Warnings reach the place that the program gave, and no other; without one they go to standard error.
#include <terrace/core/base/log.h>

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace terrace {
namespace {

TEST(Log, AGivenPlaceGetsAllAndStandardErrorNothing) {
  std::vector<std::string> told;
  testing::internal::CaptureStderr();
  {
    const Log log([&](Log::Level level, std::string_view text) {
      told.push_back((level == Log::Level::warning ? "warning " : "note ") + std::string(text));
    });
    const auto copy = log;
    log.note("half");
    copy.warn("hot");
    log.warn_once(Log::Once::memlock, "swapped");
    copy.warn_once(Log::Once::memlock, "swapped again");
    copy.warn_once(Log::Once::file_locks, "unlocked");
  }
  EXPECT_EQ("", testing::internal::GetCapturedStderr());
  EXPECT_EQ((std::vector<std::string>{"note half", "warning hot", "warning swapped", "warning unlocked"}), told);
}

TEST(Log, WithoutAPlaceStandardErrorGetsAll) {
  testing::internal::CaptureStderr();
  Log().warn("hot");
  Log().note("half");
  Log().warn_once(Log::Once::file_locks, "unlocked");
  Log().warn_once(Log::Once::file_locks, "unlocked again");
  EXPECT_EQ("warning: hot\nhalf\nwarning: unlocked\n", testing::internal::GetCapturedStderr());
}

TEST(Log, WhatItsFunctionThrowsIsDropped) {
  const Log log([](Log::Level, std::string_view) { throw std::runtime_error("no disk for the log"); });
  log.warn("hot");
}

}  // namespace
}  // namespace terrace
