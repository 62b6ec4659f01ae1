// The seeds of the chat templates' fuzzer and its earlier findings pass the same checks in every build.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include <terrace/tests/fuzz/template_texts.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

// The names give the expected result: whole* writes a text, all others are refused.
TEST(TemplateCorpus, EverySeedIsWrittenOrRefused) {
  std::size_t seeds = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(TERRACE_CORPUS) / "template")) {
    SCOPED_TRACE(entry.path());
    std::ifstream in(entry.path(), std::ios::binary);
    const std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(in), {}};
    EXPECT_EQ(entry.path().filename().string().starts_with("whole"), check_template_text(bytes));
    ++seeds;
  }
  EXPECT_GE(seeds, 12U);
}

}  // namespace
}  // namespace terrace::test
