// A test with a folder of its own under the current one (the build's: a real disk), empty at its start and gone at its end.
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
    // As deep as it is named: parameters' names hold slashes.
    return std::filesystem::absolute("test-folders") / test->test_suite_name() / test->name();
  }();
};

}  // namespace terrace::test
