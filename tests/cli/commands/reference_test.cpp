// The generated pages of docs/reference/ are up to date with the program.
#include <fstream>
#include <sstream>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

std::vector<std::string> lines_of(std::istream&& in) {
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

class Reference : public Cli, public testing::WithParamInterface<const char*> {};

TEST_P(Reference, ThePageIsAsTheProgramWritesIt) {
  const std::string name = GetParam();
  const auto outcome = succeeded(terrace({"man", name}));
  const auto file = TERRACE_REFERENCE "/" + name + ".md";
  const auto committed = lines_of(std::ifstream(file)), written = lines_of(std::istringstream(outcome.out));
  const auto [old, now] = std::ranges::mismatch(committed, written);
  if (old == committed.end() && now == written.end()) return;
  FAIL() << file << ", line " << old - committed.begin() + 1
         << ", is not what the program writes now\n  committed: " << (old == committed.end() ? "(nothing)" : *old)
         << "\n  now:       " << (now == written.end() ? "(nothing)" : *now) << "\n  write it again: " << TERRACE_PROGRAM
         << " man " << name << " > " << file;
}

INSTANTIATE_TEST_SUITE_P(Pages, Reference, testing::Values("flags", "metrics", "exit-codes", "exclusions"));

TEST_F(Cli, APageThatDoesNotExistIsRefusedWithThePagesThatDo) {
  expect_refusal(terrace({"man", "flag"}), 2, {"\"flag\"; did you mean flags?", "flags, metrics, exit-codes"});
  expect_refusal(terrace({"man", "flags", "metrics"}), 2, {"unexpected argument \"metrics\""});
}

}  // namespace
}  // namespace terrace::test
