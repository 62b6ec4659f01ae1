// Where the fuzzer of chat templates begins, and what it found once: through the same checks, in every build.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "template_texts.h"

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

// The names say what is right: whole.* writes a text, all the others do not.
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
