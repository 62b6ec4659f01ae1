// --ckpt-keep: the newest commits can be verified, copied and continued with exactly the bits of their step; a kill leaves no
// half of one; a removed one leaves no file; lack of space is detected before training.
#include <sys/syscall.h>

#include <csignal>
#include <random>

#include <fmt/format.h>

#include <terrace/tests/support/environment.h>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/forbidden_call.h>

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
  // The commits that `terrace ckpt list` shows, all verified.
  [[nodiscard]] std::vector<int> commits(const std::string& run) const {
    std::vector<int> steps;
    const auto listed = succeeded(terrace({"ckpt", "list", run, "--json"}));
    for (const auto& commit : nlohmann::json::parse(listed.out)) {
      steps.push_back(commit.at("step"));
      succeeded(terrace({"ckpt", "verify", run, "--step", std::to_string(steps.back())}));
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
  const auto whole = succeeded(train(wanted("run", 7, {"--ckpt-keep", "3", "--nvme-path", "disk"})));
  EXPECT_THAT(commits("run"), ElementsAre(5, 6, 7));
  EXPECT_THAT(folders("run"), ElementsAre("step-00000005", "step-00000006"));

  ASSERT_EQ(0, train(wanted("until 5", 5)).exit);
  succeeded(terrace({"ckpt", "copy", "run", "again", "--step", "5"}));
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

// No later commit waits for the copy. A stop leaves the complete copy, but no part of a copy of the stop's own commit.
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
  const auto whole = succeeded(train(wanted("run", 4, ranks + Words{"--ckpt-keep", "2"})));
  EXPECT_THAT(commits("run"), ElementsAre(3, 4));
  ASSERT_EQ(0, terrace({"ckpt", "copy", "run", "again", "--step", "3"}).exit);
  EXPECT_EQ(weights_of(whole), weights_of(train(wanted("again", 4, ranks))));
}

// A run of token ids with a tokenizer, which the run and each of its kept commits contain.
class KeptWithTokenizer : public Kept {
 protected:
  KeptWithTokenizer() {
    EXPECT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
    EXPECT_EQ(0, terrace({"tokenize", "corpus.txt", "--tokenizer", "tokenizer.json", "--out", "ids"}).exit);
    scratch_.write("tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  }
  [[nodiscard]] Outcome run_until(int steps) const {
    return train(
        wanted("run", steps, flags("--ckpt-keep 3 --data ids --data-format u16 --vocab 280 --tokenizer tokenizer.json")));
  }
  [[nodiscard]] Outcome remove(int step) const { return terrace({"ckpt", "rm", "run", "--step", std::to_string(step)}); }
};

TEST_F(KeptWithTokenizer, TheNewestCommitsStayAndCanBeContinued) {
  succeeded(run_until(7));
  EXPECT_THAT(commits("run"), ElementsAre(5, 6, 7));
  EXPECT_THAT(folders("run"), ElementsAre("step-00000005", "step-00000006"));
  EXPECT_EQ(scratch_.read("tokenizer.json"), scratch_.read("run/kept/step-00000005/tokenizer/tokenizer.json"));
  ASSERT_EQ(0, terrace({"ckpt", "copy", "run", "again", "--step", "5"}).exit);
  succeeded(terrace({"generate", "again", "--prompt", "the", "--max-tokens", "3"}));
  scratch_.write("run/kept/step-00000005/tokenizer/tokenizer_config.json", "{}");
  expect_refusal(terrace({"ckpt", "verify", "run", "--step", "5"}), 5, {"step-00000005/tokenizer/tokenizer_config.json"});
  ASSERT_EQ(0, remove(5).exit);
  EXPECT_THAT(folders("run"), ElementsAre("step-00000006"));
  ASSERT_EQ(0, terrace({"ckpt", "rm", "run"}).exit);
  EXPECT_FALSE(fs::exists(at("run/kept")));
}

// States after a kill at each moment: before the mark, while writing the tokenizer, before run.json, and during a removal.
TEST_F(KeptWithTokenizer, WhatAKillLeavesIsRemovedAtTheNextStart) {
  ASSERT_EQ(0, run_until(3).exit);
  const auto kept = at("run/kept");
  fs::create_directory(kept / "step-00000091");
  for (const auto* const name : {"step-00000092", "step-00000093", "step-00000094"}) {
    fs::copy(kept / "step-00000002", kept / name, fs::copy_options::recursive);
    fs::remove(kept / name / "run.json");
    scratch_.write((fs::path("run/kept") / name / "unfinished-copy").string(), "");
  }
  fs::rename(kept / "step-00000092/tokenizer/tokenizer.json", kept / "step-00000092/tokenizer/tokenizer.json.tmp");
  fs::remove(kept / "step-00000093/store/commit.0");
  scratch_.write("run/kept/step-00000094/thesis.txt", "years");
  scratch_.write("run/kept/step-00000002/unfinished-copy", "");  // after a power cut in the last moment of a copy
  const auto next = succeeded(run_until(4));
  EXPECT_EQ(1U, next.warnings("step-00000094 is not removed: it also has thesis.txt")) << next.described;
  EXPECT_EQ("years", scratch_.read("run/kept/step-00000094/thesis.txt"));
  EXPECT_TRUE(fs::exists(kept / "step-00000094/store/data"));
  fs::remove_all(kept / "step-00000094");
  EXPECT_FALSE(fs::exists(kept / "step-00000002/unfinished-copy"));
  EXPECT_THAT(commits("run"), ElementsAre(2, 3, 4));
  EXPECT_THAT(folders("run"), ElementsAre("step-00000002", "step-00000003"));
}

TEST_F(KeptWithTokenizer, ARemovalThatIsKilledIsRepeated) {
  ASSERT_EQ(0, run_until(3).exit);
  fs::rename(at("run"), at("whole"));
  std::vector<unsigned> calls{__NR_fsync, __NR_unlinkat};
#ifdef __NR_unlink
  calls.insert(calls.end(), {__NR_unlink, __NR_rmdir});
#endif
  for (const auto call : calls) {
    SCOPED_TRACE(call);
    fs::remove_all(at("run"));
    fs::copy(at("whole"), at("run"), fs::copy_options::recursive);
    auto killed = launch({"ckpt", "rm", "run", "--step", "2"});
    killed.in_child = [call] { die_at_call(call); };
    const auto outcome = run(killed);
    if (outcome.exit == kNotPermitted) GTEST_SKIP() << "a seccomp filter is not permitted here";
    ASSERT_EQ(SIGSYS, outcome.signal) << outcome.described;
    EXPECT_TRUE(fs::exists(at("run/kept/step-00000002")));
    succeeded(remove(2));
    EXPECT_THAT(folders("run"), ElementsAre("step-00000001"));
  }
  fs::create_directory(at("run/kept/step-00000002"));  // as after a kill after the last file
  EXPECT_EQ(0, remove(2).exit);
  EXPECT_THAT(folders("run"), ElementsAre("step-00000001"));
  expect_refusal(remove(2), 2, {"no commit after step 2", "1, 3"});
}

TEST_F(Kept, ARunAtWorkIsListed) {
  Child child(launch(tiny("train", wanted("run", 1'000'000, {"--ckpt-keep", "2", "--ckpt-interval", "2", "--json"}))));
  child.read_lines(1);  // then it waits for the test
  succeeded(terrace({"ckpt", "list", "run"}));
  child.read_lines(5);
  const auto all = nlohmann::json::parse(succeeded(terrace({"ckpt", "list", "run", "--json"})).out);
  ASSERT_FALSE(all.empty());
  EXPECT_GE(all.back().at("step").get<int>(), 2);
  EXPECT_EQ("run", all.back().at("directory"));
  expect_refusal(terrace({"ckpt", "verify", "run", "--step", "1"}), 2, {"no commit after step 1"});
  child.send(SIGTERM);
  EXPECT_EQ(75, child.wait().exit);
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
