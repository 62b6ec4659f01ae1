// A test with its own folder under the current one (in the build directory, on a real disk): empty at its start and removed at
// its end.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

namespace terrace::test {

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  const std::filesystem::path folder_ = [] {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    // A nested path, because parameters' names contain slashes.
    return std::filesystem::absolute("test-folders") / test->test_suite_name() / test->name();
  }();
};

}  // namespace terrace::test
