// A run that is killed at any moment, once or twice, continues from its last commit and ends with the same weights and losses
// as an undisturbed run; and a kill leaves nothing on the disks that must be cleaned up.
#include <chrono>
#include <csignal>
#include <random>
#include <set>

#include <fmt/format.h>

#include <terrace/tests/support/environment.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

const std::vector<Words> kWays{
    flags("--nvme-path disk --device-memory 1MiB --host-memory 1MiB"),
    flags("--durability step --nvme-path disk --device-memory 1MiB --host-memory 2MiB"),
    flags("--nvme-path disk --nvme-path disk2 --device-memory 1MiB --host-memory 1MiB"),
    {},  // everything in memory: only commits use the disk
};

class Kills : public Cli {
 protected:
  [[nodiscard]] Launch wanted(const std::string& run, const Words& more) const {
    return launch(tiny("train", Words{"--steps", "8", "--ckpt-interval", "1", "--resume", "auto", "--out-dir", run} + more));
  }
  // Expects the files of two commits, each twice, and no others.
  void expect_nothing_left() const {
    std::set<std::string> names, indices;
    for (const auto* disk : {"disk", "disk2", "run/store"}) {
      if (!fs::exists(at(disk))) continue;
      for (const auto& entry : fs::recursive_directory_iterator(at(disk))) {
        if (!entry.is_regular_file()) continue;
        const auto name = entry.path().filename().string();
        (name.starts_with("index.") ? indices : names).insert(name);
      }
    }
    EXPECT_EQ((std::set<std::string>{"commit.0", "commit.0.copy", "commit.1", "commit.1.copy", "data", "lock"}), names);
    EXPECT_EQ(4U, indices.size()) << fmt::format("{}", fmt::join(indices, " "));
  }
};

TEST_F(Kills, AtRandomMomentsLoseNothing) {
  // tests/long.sh runs more of them, with another seed each time.
  const auto kills = number_from_environment("TERRACE_KILLS", 10), first_seed = number_from_environment("TERRACE_KILL_SEED", 1);
  const auto begin = std::chrono::steady_clock::now();
  const auto whole = run(wanted("whole", kWays[0]));
  const auto whole_ns = static_cast<std::uint64_t>((std::chrono::steady_clock::now() - begin).count());
  ASSERT_EQ(0, whole.exit) << whole.described;

  std::uint64_t killed = 0, resumed = 0;
  for (std::uint64_t seed = first_seed; killed < kills; ++seed) {
    std::mt19937_64 random(seed);
    const auto& way = kWays[random() % kWays.size()];
    SCOPED_TRACE(fmt::format("TERRACE_KILL_SEED={}: {}", seed, fmt::join(way, " ")));
    for (const auto* left : {"run", "disk", "disk2"}) fs::remove_all(at(left));
    for (const auto* disk : {"disk", "disk2"}) fs::create_directory(at(disk));
    const auto times = 1 + random() % 2;
    for (std::uint64_t i = 0; i < times; ++i) {
      const auto outcome = Child(wanted("run", way)).kill_after(std::chrono::nanoseconds(random() % whole_ns));
      ASSERT_TRUE(outcome.signal == SIGKILL || outcome.exit == 0) << outcome.described;
      killed += outcome.signal == SIGKILL;
    }
    const auto finished = succeeded(run(wanted("run", way)));
    resumed += finished.out.find("resumed after step") != std::string::npos;
    ASSERT_EQ(weights_of(whole), weights_of(finished)) << finished.described;
    ASSERT_EQ(steps("whole"), steps("run"));
    expect_nothing_left();
    succeeded(terrace({"ckpt", "verify", "run"}));
  }
  fmt::print("{} kills; {} runs went on from a commit\n", killed, resumed);
}

}  // namespace
}  // namespace terrace::test
