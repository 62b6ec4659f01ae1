// What is promised of --ckpt-keep: the newest commits can be verified, copied and continued, with the very bits of that step;
// a kill leaves no half of one; what is removed leaves no file; what does not fit is refused before training.
#include <csignal>
#include <random>

#include <fmt/format.h>

#include <terrace/tests/support/environment.h>

#include "cli_test.h"

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

class Kept : public Cli {
 protected:
  [[nodiscard]] Words wanted(const std::string& run, int steps, const Words& more = {}) const {
    return Words{"--steps",         std::to_string(steps),
                 "--ckpt-interval", "1",
                 "--lr-schedule",   "constant",
                 "--resume",        "auto",
                 "--out-dir",       run} +
           more;
  }
  // As `terrace ckpt list` tells them, each of them verified.
  [[nodiscard]] std::vector<int> commits(const std::string& run) const {
    std::vector<int> steps;
    const auto listed = terrace({"ckpt", "list", run, "--json"});
    EXPECT_EQ(0, listed.exit) << listed.described;
    for (const auto& commit : nlohmann::json::parse(listed.out)) {
      steps.push_back(commit.at("step"));
      const auto verified = terrace({"ckpt", "verify", run, "--step", std::to_string(steps.back())});
      EXPECT_EQ(0, verified.exit) << verified.described;
    }
    return steps;
  }
  [[nodiscard]] std::vector<std::string> folders(const std::string& run) const {
    std::vector<std::string> names;
    if (fs::exists(at(run) / "kept"))
      for (const auto& entry : fs::directory_iterator(at(run) / "kept")) names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }
};

TEST_F(Kept, TheNewestCommitsStayAndCanBeContinued) {
  const auto whole = train(wanted("run", 7, {"--ckpt-keep", "3", "--nvme-path", "disk"}));
  ASSERT_EQ(0, whole.exit) << whole.described;
  EXPECT_THAT(commits("run"), ElementsAre(5, 6, 7));
  EXPECT_THAT(folders("run"), ElementsAre("step-00000005", "step-00000006"));

  ASSERT_EQ(0, train(wanted("until 5", 5)).exit);
  const auto copied = terrace({"ckpt", "copy", "run", "again", "--step", "5"});
  ASSERT_EQ(0, copied.exit) << copied.described;
  EXPECT_EQ(json_in("until 5/result.json").at("weights_xxh64").get<std::string>(), weights_of(train(wanted("again", 5))));
  EXPECT_EQ(weights_of(whole), weights_of(train(wanted("again", 7))));
  EXPECT_EQ(steps("run"), steps("again"));

  expect_refusal(terrace({"ckpt", "verify", "run", "--step", "4"}), 2, {"no commit after step 4", "5, 6, 7"});
  expect_refusal(terrace({"ckpt", "rm", "run", "--step", "7"}), 2, {"is the last one"});
  ASSERT_EQ(0, terrace({"ckpt", "rm", "run", "--step", "5"}).exit);
  EXPECT_THAT(commits("run"), ElementsAre(6, 7));
  ASSERT_EQ(0, terrace({"ckpt", "rm", "run"}).exit);
  EXPECT_FALSE(fs::exists(at("run/kept")));
}

TEST_F(Kept, AKillLeavesNoHalfOfACommit) {
  const auto kills = number_from_environment("TERRACE_KILLS", 2), seed = number_from_environment("TERRACE_KILL_SEED", 1);
  const Words more{"--ckpt-keep", "3"};
  ASSERT_EQ(0, train(wanted("run", 3, more)).exit);
  std::mt19937_64 random(seed);
  int last = 3;
  for (std::uint64_t i = 0; i < kills; ++i) {
    SCOPED_TRACE(fmt::format("TERRACE_KILL_SEED={}, kill {}", seed, i));
    const auto before = commits("run");
    const auto outcome = Child(launch(tiny("train", wanted("run", last + 20, more))))
                             .kill_after(std::chrono::milliseconds(100) + std::chrono::microseconds(random() % 200'000));
    ASSERT_TRUE(outcome.signal == SIGKILL || outcome.exit == 0) << outcome.described;
    const auto after = commits("run");
    ASSERT_GE(after.size(), 3U);
    EXPECT_GE(after.back(), before.back());
    for (std::size_t j = after.size() - 3; j + 1 < after.size(); ++j) EXPECT_EQ(after[j] + 1, after[j + 1]) << "a gap";
    last = after.back();
  }
  ASSERT_EQ(0, train(wanted("run", last + 1, more)).exit);
  EXPECT_THAT(commits("run"), ElementsAre(last - 1, last, last + 1));
  EXPECT_EQ(2U, folders("run").size()) << "an unfinished copy is left";
  ASSERT_EQ(0, train(wanted("whole", last + 1)).exit);
  EXPECT_EQ(json_in("whole/result.json").at("weights_xxh64"), json_in("run/result.json").at("weights_xxh64"));
}

// No other commit follows that could wait for the copy. A stop leaves the copy, and no part of one of its own commit.
TEST_F(Kept, ACommitIsCopiedBesideTheStepsThatFollow) {
  for (const auto& ranks : {Words{}, Words{"--dp", "2", "--zero", "1", "--grad-accumulation", "1"}}) {
    fs::remove_all(at("run"));
    Child child(
        launch(tiny("train", wanted("run", 1'000'000, Words{"--ckpt-keep", "2", "--ckpt-interval", "0", "--json"} + ranks))));
    child.read_lines(3);
    child.send(SIGUSR1);
    const auto is_copied = [&] {
      std::error_code error;
      for (const auto& entry : fs::recursive_directory_iterator(at("run/kept"), error))
        if (entry.path().filename().string().starts_with("commit.")) return true;
      return false;
    };
    while (!is_copied()) child.read_lines(1);
    child.send(SIGTERM);
    const auto outcome = child.wait();
    ASSERT_EQ(75, outcome.exit) << outcome.described;
    ASSERT_EQ(1U, folders("run").size());
    const auto both = commits("run");
    ASSERT_EQ(2U, both.size());
    EXPECT_EQ(fmt::format("step-{:08}", both.front()), folders("run").front());
    ASSERT_EQ(0, train(wanted("run", both.back() + 2, Words{"--ckpt-keep", "2"} + ranks)).exit);
    EXPECT_THAT(commits("run"), ElementsAre(both.back() + 1, both.back() + 2));
  }
}

TEST_F(Kept, OfSeveralRanksEachCopiesItsPart) {
  const Words ranks{"--dp", "2", "--zero", "1", "--grad-accumulation", "1"};
  const auto whole = train(wanted("run", 4, ranks + Words{"--ckpt-keep", "2"}));
  ASSERT_EQ(0, whole.exit) << whole.described;
  EXPECT_THAT(commits("run"), ElementsAre(3, 4));
  ASSERT_EQ(0, terrace({"ckpt", "copy", "run", "again", "--step", "3"}).exit);
  EXPECT_EQ(weights_of(whole), weights_of(train(wanted("again", 4, ranks))));
}

TEST_F(Kept, WhatDoesNotFitIsRefusedBeforeTraining) {
  expect_refusal(train(wanted("run", 4, {"--ckpt-keep", "50", "--nvme-path", "disk", "--nvme-limit", "8MiB"})), 3,
                 {"--ckpt-keep 50 does not fit", "--nvme-limit"});
  EXPECT_FALSE(fs::exists(at("run/run.json")));
  expect_refusal(train(wanted("run", 4, {"--ckpt-keep", "100000"})), 3, {"--ckpt-keep 100000 does not fit", "free"});
  expect_refusal(train({"--ckpt-keep", "2", "--durability", "off"}), 2, {"--ckpt-keep 2 contradicts --durability off"});
}

}  // namespace
}  // namespace terrace::test
