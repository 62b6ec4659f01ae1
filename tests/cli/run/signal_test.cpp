// A signal stops a run cleanly (exit 75), a kill only loses the steps after the last commit, and in both cases --resume auto
// ends with the same losses and weights as an undisturbed run.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

constexpr std::size_t kSteps = 40;
constexpr std::size_t kLinesBefore = 5;

class Signals : public Cli {
 protected:
  [[nodiscard]] Words wanted(const std::string& run, const Words& more = {}) const {
    return Words{"--steps", std::to_string(kSteps), "--out-dir", run, "--lr-schedule", "cosine"} + more;
  }
  void SetUp() override { weights_ = weights_of(train(wanted("whole"))); }
  // With --json each step prints a line, and the run waits while the test does not read: it cannot finish before the signal.
  [[nodiscard]] Launch disturbed(const Words& more = {}) const {
    return launch(tiny("train", wanted("run", Words{"--json"} + more)));
  }
  void expect_the_same_in_the_end(const Words& more = {}) const {
    const auto outcome = succeeded(train(wanted("run", Words{"--resume", "auto"} + more)));
    EXPECT_THAT(outcome.out, HasSubstr("resumed after step"));
    EXPECT_EQ(weights_, weights_of(outcome));
    EXPECT_EQ(kSteps, steps("run").size());
    EXPECT_EQ(steps("whole"), steps("run"));
  }

  // Waits until the program has installed its SIGUSR1 handler.
  static void wait_for_main(const Child& child) {
    for (unsigned long long caught = 0; (caught >> (SIGUSR1 - 1)) % 2 == 0;) {
      std::ifstream status(child.proc() / "status");
      const std::string key = "SigCgt:\t";
      for (std::string line; std::getline(status, line);)
        if (line.starts_with(key)) caught = std::stoull(line.substr(key.size()), nullptr, 16);
    }
  }

  std::string weights_;
};

TEST_F(Signals, StopCleanlyAndResumeBitForBit) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR2}) {
    std::filesystem::remove_all(at("run"));
    Child child(disturbed());
    child.read_lines(kLinesBefore);
    child.send(signal);
    const auto outcome = child.wait();
    ASSERT_EQ(75, outcome.exit) << outcome.described;
    EXPECT_THAT(outcome.err, HasSubstr("stopped by signal " + std::to_string(signal)));
    EXPECT_THAT(outcome.err, HasSubstr("; continue with: terrace train --resume " + at("run").string() + "\n"));
    const auto done = steps("run").size();
    EXPECT_GE(done, kLinesBefore);
    EXPECT_LT(done, kSteps);
    EXPECT_EQ(0, terrace({"ckpt", "verify", "run"}).exit);
    expect_the_same_in_the_end();
  }
}

// Also at the start, and for a command that commits nothing.
TEST_F(Signals, Usr1CommitsAndTheRunGoesOn) {
  Child child(disturbed());
  wait_for_main(child);
  child.send(SIGUSR1);
  child.read_lines(kLinesBefore);
  child.send(SIGUSR1);
  const auto outcome = succeeded(child.wait());
  EXPECT_EQ(weights_, weights_of(outcome));
  EXPECT_EQ(steps("whole"), steps("run"));
  const std::string note = "because of SIGUSR1";
  EXPECT_NE(outcome.err.find(note), outcome.err.rfind(note)) << outcome.described;
  const auto commit = nlohmann::json::parse(terrace({"ckpt", "inspect", "run", "--json"}).out).at("commit");
  EXPECT_EQ(3, commit) << "two on request, and one at the end";
  std::size_t waits = 0;  // a step's line contains the time that the run waited for the commit before it
  for (const auto& m : metrics("run")) waits += m.contains("commit_s");
  EXPECT_EQ(2U, waits);

  Child generating(launch({"generate", "run", "--prompt", "The", "--max-tokens", "20"}));
  wait_for_main(generating);
  for (int i = 0; i < 20; ++i) generating.send(SIGUSR1);
  EXPECT_EQ(0, generating.wait().exit);
}

// Killed directly after the message: the commit made for SIGUSR1 is present.
TEST_F(Signals, WhatUsr1CommittedOutlivesAKill) {
  Child child(disturbed());
  child.read_lines(kLinesBefore);
  child.send(SIGUSR1);
  child.read_lines(kLinesBefore + kLinesBefore);
  child.send(SIGKILL);
  const auto outcome = child.wait();
  EXPECT_EQ(SIGKILL, outcome.signal) << outcome.described;
  EXPECT_THAT(outcome.err, HasSubstr("because of SIGUSR1"));
  expect_the_same_in_the_end();
}

TEST_F(Signals, Usr1SaysThatACommitWouldBeOverwritten) {
  Child child(disturbed({"--durability", "off"}));
  child.read_lines(kLinesBefore);
  child.send(SIGUSR1);
  const auto outcome = succeeded(child.wait());
  EXPECT_THAT(outcome.err, HasSubstr("SIGUSR1: with --durability off nothing is committed before the end"));
  EXPECT_EQ(1, nlohmann::json::parse(terrace({"ckpt", "inspect", "run", "--json"}).out).at("commit").get<int>());
}

TEST_F(Signals, OneThatEndsARunWhichKeepsNothingSaysSo) {
  Child child(disturbed({"--durability", "none"}));
  child.read_lines(kLinesBefore);
  child.send(SIGTERM);
  const auto outcome = child.wait();
  EXPECT_EQ(1, outcome.exit) << outcome.described;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("stopped by signal 15"), HasSubstr("nothing is kept with --durability none"),
                                 Not(HasSubstr("--resume auto"))));
}

// At that moment the weights may still be on their way to their places.
TEST_F(Signals, OneBeforeTheFirstStepIsHarmless) {
  Child child(disturbed({"--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"}));
  while (!std::filesystem::exists(at("run") / "run.json")) std::this_thread::yield();
  child.send(SIGINT);
  const auto outcome = child.wait();
  EXPECT_EQ(75, outcome.exit) << outcome.described;
  EXPECT_EQ(0, terrace({"ckpt", "verify", "run"}).exit);
  expect_the_same_in_the_end();
}

// Evaluations that would take years, after a step and after the last one.
TEST_F(Signals, EndAnEvaluation) {
  const Words endless{"--eval-batches", "1000000000000"};
  const auto stop_in_evaluation = [&](const Words& more, std::size_t lines_before) {
    Child child(disturbed(endless + more));
    child.read_lines(lines_before);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    child.send(SIGTERM);
    const auto outcome = child.wait();
    EXPECT_EQ(75, outcome.exit) << outcome.described;
  };
  stop_in_evaluation({"--eval-interval", "3"}, 2);
  stop_in_evaluation({"--resume", "auto"}, kSteps - 3 - 1);
  EXPECT_FALSE(std::filesystem::exists(at("run/result.json")));
  expect_the_same_in_the_end();
  EXPECT_EQ(json_in("whole/result.json").at("eval_loss"), json_in("run/result.json").at("eval_loss"));
}

TEST_F(Signals, ASecondOneDuringTheShutdownIsHarmless) {
  Child child(disturbed({"--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"}));
  child.read_lines(kLinesBefore);
  child.send(SIGINT);
  child.send(SIGINT);
  const auto outcome = child.wait();
  EXPECT_EQ(75, outcome.exit) << outcome.described;
  expect_the_same_in_the_end();
}

// Ctrl-Z and fg: time during which the process was stopped must not count as a slow disk.
TEST_F(Signals, ARunThatWasStoppedForLongerThanItsDeadlineGoesOn) {
  Child child(disturbed({"--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB", "--io-deadline", "5"}));
  for (int i = 0; i < 2; ++i) {
    child.read_lines(kLinesBefore);
    child.send(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(5200));
    child.send(SIGCONT);
  }
  succeeded(child.wait());
  EXPECT_EQ(steps("whole"), steps("run"));
}

TEST_F(Signals, AKilledRunGoesOnFromItsLastCommit) {
  for (const Words& tiers : {Words{}, Words{"--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"}}) {
    std::filesystem::remove_all(at("run"));
    Child child(disturbed(Words{"--ckpt-interval", "2"} + tiers));
    child.read_lines(kLinesBefore);
    child.send(SIGKILL);
    const auto outcome = child.wait();
    EXPECT_EQ(SIGKILL, outcome.signal) << outcome.described;
    const auto commit = nlohmann::json::parse(terrace({"ckpt", "inspect", "run", "--json"}).out);
    EXPECT_GE(commit.at("step"), kLinesBefore - 1) << "a step's line is written after the commit before it";
    EXPECT_EQ(0, commit.at("step").get<int>() % 2);
    expect_the_same_in_the_end();
  }
}

TEST_F(Signals, AKillBeforeAnyCommitStartsAfresh) {
  Child child(disturbed());
  child.read_lines(2);
  child.send(SIGKILL);
  (void)child.wait();
  const auto outcome = succeeded(train(wanted("run", {"--resume", "auto"})));
  EXPECT_THAT(outcome.out, Not(HasSubstr("resumed")));
  EXPECT_EQ(weights_, weights_of(outcome));
  EXPECT_EQ(steps("whole"), steps("run"));
}

TEST_F(Signals, OutputThatNobodyReadsAnyMoreStopsNothing) {
  Child child(disturbed());
  child.read_lines(kLinesBefore);
  child.close_output();
  succeeded(child.wait());
  EXPECT_EQ(steps("whole"), steps("run"));
  EXPECT_EQ(weights_, json_in("run/result.json").at("weights_xxh64").get<std::string>());
}

}  // namespace
}  // namespace terrace::test
