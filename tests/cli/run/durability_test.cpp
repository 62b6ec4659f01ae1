// --durability decides what a kill may cost, and nothing else: the weights are the same.
#include <csignal>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

class Durability : public Cli {
 protected:
  const Words offloaded_{"--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB", "--steps", "24"};
  [[nodiscard]] Words wanted(const std::string& run, const Words& more) const {
    return offloaded_ + Words{"--out-dir", run} + more;
  }
  void kill_in_the_middle(const std::string& run, Words more, int signal) const {
    more.emplace_back("--json");
    Child child(launch(tiny("train", wanted(run, more))));
    child.read_lines(3);  // then it waits for the test
    child.send(signal);
    const auto outcome = child.wait();
    ASSERT_EQ(signal == SIGKILL ? SIGKILL : 0, outcome.signal) << outcome.described;
  }
};

TEST_F(Durability, EveryKindGivesTheSameWeights) {
  // The planner's choice depends on what a commit moves; with fixed choices only the commits differ.
  const Words same_step{"--order", "horizontal", "--recompute", "none", "--activations", "keep", "--prefetch-depth", "1"};
  const auto commit = succeeded(train(wanted("commit", same_step)));
  for (const std::string kind : {"step", "off"}) {
    EXPECT_EQ(weights_of(commit), weights_of(train(wanted(kind, same_step + Words{"--durability", kind}))));
    EXPECT_EQ(steps("commit"), steps(kind));
  }
  const auto peak = [&](const std::string& run) {
    return json_in(run + "/plan.json").at("peak_bytes").at("nvme").get<std::uint64_t>();
  };
  std::uint64_t state = 0;  // the content of a commit, without gradients
  const auto inspected = nlohmann::json::parse(terrace({"ckpt", "inspect", "commit", "--json"}).out);
  for (const auto& kind : inspected.at("kinds")) state += kind.at("bytes").get<std::uint64_t>();
  EXPECT_EQ(peak("commit"), peak("step"));
  EXPECT_EQ(peak("commit"), peak("off") + state) << "the second generation";
  for (const std::string run : {"commit", "step", "off"})
    EXPECT_EQ(json_in(run + "/plan.json").at("peak_bytes"), json_in(run + "/result.json").at("peak_bytes")) << run;
  EXPECT_EQ(24, json_in("step/plan.json").at("commit").at("commits"));
  EXPECT_EQ(1, json_in("off/plan.json").at("commit").at("commits"));
}

TEST_F(Durability, StepLosesNoStepThatWasTold) {
  kill_in_the_middle("run", {"--durability", "step"}, SIGKILL);
  const auto told = steps("run").size();
  const auto commit = nlohmann::json::parse(terrace({"ckpt", "inspect", "run", "--json"}).out);
  EXPECT_GE(commit.at("step").get<std::size_t>() + 1, told);  // a step's line is written before its commit
  const auto whole = train(wanted("whole", {}));
  EXPECT_EQ(weights_of(whole), weights_of(train(wanted("run", {"--durability", "step", "--resume", "auto"}))));
}

TEST_F(Durability, OffLosesEverythingToAKillAndSaysSo) {
  kill_in_the_middle("run", {"--durability", "off"}, SIGKILL);
  const auto again = succeeded(train(wanted("run", {"--durability", "off", "--resume", "auto"})));
  EXPECT_EQ(1U, again.warnings("committed nothing, so it starts again")) << again.described;
  EXPECT_THAT(again.out, Not(HasSubstr("resumed")));
  const auto whole = train(wanted("whole", {}));
  EXPECT_EQ(weights_of(whole), weights_of(again));
  EXPECT_EQ(steps("whole"), steps("run"));
}

TEST_F(Durability, OffCommitsAtACleanStop) {
  kill_in_the_middle("run", {"--durability", "off"}, SIGTERM);
  // Space for a second generation was not reserved.
  expect_refusal(train(wanted("run", {"--resume", "auto"})), 2, {"one generation", "--durability off"});
  // Nor may a run without commits overwrite the only commit.
  expect_refusal(train(wanted("run", {"--resume", "auto", "--durability", "none"})), 2,
                 {"--durability none", "--durability off"});
  const auto resumed = succeeded(train(wanted("run", {"--durability", "off", "--resume", "auto"})));
  EXPECT_THAT(resumed.out, HasSubstr("resumed after step"));
  EXPECT_EQ(weights_of(train(wanted("whole", {}))), weights_of(resumed));
  succeeded(terrace({"generate", "run", "--prompt", "the ", "--max-tokens", "4"}));
}

TEST_F(Durability, WhatContradictsIsRefused) {
  expect_refusal(train({"--durability", "step", "--ckpt-interval", "2"}), 2, {"--ckpt-interval 2", "--durability step"});
  expect_refusal(train({"--durability", "off", "--ckpt-interval", "2"}), 2, {"--ckpt-interval 2", "--durability off"});
  expect_refusal(train({"--durability", "maybe"}), 2, {"durability", "commit"});
  EXPECT_EQ(0, train({"--durability", "step", "--ckpt-interval", "1"}).exit);
}

}  // namespace
}  // namespace terrace::test
