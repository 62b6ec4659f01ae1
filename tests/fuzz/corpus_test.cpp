// Earlier findings of the fuzzers and their seeds pass the same checks in every build.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include <terrace/tests/fuzz/store_texts.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::uint8_t> bytes_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
std::string text_of(const fs::path& file) {
  const auto bytes = bytes_of(file);
  return {bytes.begin() + 1, bytes.end()};
}

const fs::path kCorpus = fs::path(TERRACE_CORPUS) / "store";

TEST(StoreCorpus, EverySeedPasses) {
  std::size_t seeds = 0;
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    SCOPED_TRACE(entry.path());
    EXPECT_NO_THROW(check_store_text(bytes_of(entry.path())));
    ++seeds;
  }
  EXPECT_GE(seeds, 12U);
}

// The names give the expected result: whole* is accepted, all others are refused.
TEST(StoreCorpus, OnlyWhatAStoreWroteIsAccepted) {
  for (const auto& entry : fs::directory_iterator(kCorpus)) {
    SCOPED_TRACE(entry.path());
    const auto bytes = bytes_of(entry.path());
    ASSERT_FALSE(bytes.empty());
    const auto text = text_of(entry.path());
    const bool accepted =
        bytes[0] == 'i' ? check_index(text) : check_record(bytes[0] == 'b' ? store::with_checksum(text) : text);
    EXPECT_EQ(entry.path().filename().string().starts_with("whole"), accepted);
  }
}

}  // namespace
}  // namespace terrace::test
