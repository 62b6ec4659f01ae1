// The seeds of the readers' fuzzers and their earlier findings pass the same checks in every build.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <terrace/tests/fuzz/reader_checks.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class ReaderCorpus : public testing::TestWithParam<ReaderCheck> {};

// The names give the expected result: whole* is accepted, all others are refused.
TEST_P(ReaderCorpus, OnlyWhatIsWholeIsRead) {
  std::size_t seeds = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(TERRACE_CORPUS) / GetParam().name)) {
    SCOPED_TRACE(entry.path());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(entry.path().filename().string().starts_with("whole"), GetParam().accepts(bytes));
    ++seeds;
  }
  EXPECT_GE(seeds, 6U);
}

INSTANTIATE_TEST_SUITE_P(Readers, ReaderCorpus, testing::ValuesIn(kReaderChecks),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace terrace::test
