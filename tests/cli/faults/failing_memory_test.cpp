// Whichever allocation or thread start fails, a run either ends with a message and code 1, or continues. It neither aborts nor
// hangs, and leaves no lock.
#include <cstdlib>
#include <random>
#include <set>
#include <string>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

class FailingMemory : public Cli {
 protected:
  [[nodiscard]] Outcome run_with(const std::string& variable, const std::string& value, bool all_later = false) const {
    auto launched = launch(
        tiny("train",
             flags("--steps 2 --nvme-path disk --device-memory 1MiB --host-memory 1MiB --out-dir run --resume auto --force")));
    launched.environment["LD_PRELOAD"] = TERRACE_FAILING_MEMORY;
    launched.environment[variable] = value;
    if (all_later) launched.environment["TERRACE_FAIL_ON"] = "1";
    return run(launched);
  }
};

// TERRACE_ALLOCATIONS: how many allocations to fail, drawn with TERRACE_ALLOCATION_SEED; 0: every one.
TEST_F(FailingMemory, EndsARunWithAMessageAtEveryAllocation) {
  if (TERRACE_SANITIZED) GTEST_SKIP() << "a sanitizer has its own allocator";
  succeeded(run_with("TERRACE_COUNT", at("count").string()));
  const auto all = std::stoull(scratch_.read("count"));
  ASSERT_GT(all, 1000U);
  // Allocations before main() belong to the loader and the libraries (oneDNN 3 makes some 70,000), and the program cannot
  // report an error yet. A call that only prints the version makes few others, so it counts them.
  auto version = launch({"--version"});
  version.environment["LD_PRELOAD"] = TERRACE_FAILING_MEMORY;
  version.environment["TERRACE_COUNT"] = at("before").string();
  ASSERT_EQ(0, run(version).exit);
  const auto before_main = std::stoull(scratch_.read("before"));
  ASSERT_LT(before_main, all);
  const char* const given = std::getenv("TERRACE_ALLOCATIONS");
  const char* const seed_given = std::getenv("TERRACE_ALLOCATION_SEED");
  const std::uint64_t places = given ? std::stoull(given) : 24, seed = seed_given ? std::stoull(seed_given) : 21;
  std::mt19937_64 random(seed);
  std::set<std::uint64_t> at_numbers;
  for (std::uint64_t i = 0; i < places; ++i) at_numbers.insert(before_main + random() % (all - before_main));
  for (auto n = before_main; places == 0 && n <= all; ++n) at_numbers.insert(n);
  for (const auto n : at_numbers) {
    const bool all_later = n % 2 == 0;
    SCOPED_TRACE("seed " + std::to_string(seed) + ", allocation " + std::to_string(n) +
                 (all_later ? " and all later ones" : ""));
    std::filesystem::remove_all(at("run"));
    std::filesystem::remove_all(at("disk"));
    std::filesystem::create_directory(at("disk"));
    const auto outcome = run_with("TERRACE_FAIL_AT", std::to_string(n), all_later);
    EXPECT_EQ(0, outcome.signal) << outcome.described;
    EXPECT_TRUE(outcome.exit == 0 || outcome.exit == 1) << outcome.described;
    EXPECT_TRUE(outcome.exit == 0 || outcome.err.find("error: ") != std::string::npos) << outcome.described;
  }
}

}  // namespace
}  // namespace terrace::test
