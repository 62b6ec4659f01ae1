// Runs and their directories: which command may continue which run; and that only the requested number of steps decides the
// result.
#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class RunRules : public Cli {
 protected:
  void expect_equal_runs(const std::string& a, const std::string& b) const { EXPECT_EQ(steps(a), steps(b)) << a << ", " << b; }
};

TEST_F(RunRules, AFinishedRunSaysItsHashAgain) {
  const auto first = succeeded(train({}));
  const auto metrics_then = scratch_.read("run/metrics.jsonl");
  for (const Words& more : {Words{}, Words{"--json"}, Words{"--steps", "3"}}) {
    EXPECT_EQ(weights_of(first), weights_of(train(more + Words{"--resume", "auto"})));
  }
  EXPECT_EQ(metrics_then, scratch_.read("run/metrics.jsonl"));
}

TEST_F(RunRules, AFinishedRunStillSavesAndVerifies) {
  const auto first = succeeded(train({"--save", "then.safetensors"}));
  const auto result = json_in("run/result.json");
  const auto saved = succeeded(train({"--resume", "auto", "--save", "now.safetensors"}));
  EXPECT_EQ(scratch_.read("then.safetensors"), scratch_.read("now.safetensors"));
  EXPECT_EQ(weights_of(first), weights_of(saved));
  const auto verified = succeeded(train({"--resume", "auto", "--verify-resident"}));
  EXPECT_THAT(verified.out, HasSubstr("4 of 4 losses are bit-identical"));
  EXPECT_EQ(result, json_in("run/result.json"));
}

// As after a kill between the last commit and the result.
TEST_F(RunRules, ARunThatDiedBeforeItsResultTellsTheSame) {
  const std::pair<std::string, Words> ways[] = {
      {"memory", {}},
      {"disk", {"--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"}},
      {"ranks", {"--dp", "2", "--zero", "2"}},
      {"pipeline", {"--pp", "2"}},
      {"unevaluated", {"--eval-batches", "0", "--ckpt-interval", "3"}},
  };
  for (const auto& [run, more] : ways) {
    SCOPED_TRACE(run);
    auto words = more + Words{"--out-dir", run, "--resume", "auto", "--json"};
    const auto first = succeeded(train(words));
    const auto result = json_in(run + "/result.json"), trace = json_in(run + "/trace.json");
    const auto inspected = terrace({"ckpt", "inspect", run}).out;
    fs::remove(at(run) / "result.json");
    const auto again = succeeded(train(words));
    EXPECT_EQ(result, json_in(run + "/result.json"));
    EXPECT_EQ(nlohmann::json::parse(first.last_line()), nlohmann::json::parse(again.last_line()));
    EXPECT_EQ(trace, json_in(run + "/trace.json"));
    EXPECT_EQ(inspected, terrace({"ckpt", "inspect", run}).out) << "committed again";
  }
}

TEST_F(RunRules, AutoStartsAfreshWhereNothingIs) {
  const auto never = train({"--out-dir", "never"});
  EXPECT_EQ(weights_of(never), weights_of(train({"--resume", "auto"})));
  expect_equal_runs("never", "run");
}

TEST_F(RunRules, MoreStepsUnderOtherBudgetsGiveTheUninterruptedRun) {
  const auto whole = succeeded(train({"--steps", "9", "--out-dir", "whole"}));
  ASSERT_EQ(0, train({"--steps", "2", "--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"}).exit);
  const std::vector<Words> ways{
      {"--steps", "4"},
      flags("--steps 5 --nvme-path disk --device-memory 2MiB --prefetch-depth 0"),
      flags("--steps 7 --nvme-path disk --device-memory 1MiB --host-memory 1MiB --threads 1"),
      {"--steps", "9", "--recompute", "layer"},
  };
  Outcome last;
  for (auto words : ways) {
    words.insert(words.end(), {"--resume", "auto"});
    last = train(words);
    ASSERT_EQ(0, last.exit) << last.described;
  }
  EXPECT_EQ(weights_of(whole), weights_of(last));
  expect_equal_runs("whole", "run");
}

TEST_F(RunRules, ResumeNamesItsDirectory) {
  const auto whole = train({"--steps", "6", "--out-dir", "whole"});
  ASSERT_EQ(0, train({}).exit);
  EXPECT_EQ(weights_of(whole), weights_of(train({"--resume", "run", "--out-dir", "ignored", "--steps", "6"})));
  EXPECT_FALSE(fs::exists(at("ignored")));
}

TEST_F(RunRules, AnotherModelDataOrSeedIsRefusedUnlessForced) {
  ASSERT_EQ(0, train({}).exit);
  scratch_.write("other.txt", EnglishText(kCorpusSeed + 1).of(kCorpusBytes));
  const auto config = scratch_.read("run/config.toml");
  const auto again = [&](Words words) {
    words.insert(words.end(), {"--resume", "auto", "--steps", "6"});
    return train(words);
  };
  expect_refusal(again({"--seed", "3"}), 2, {"seed: 1 then, 3 now", "--force"});
  expect_refusal(again({"--data", "other.txt"}), 2, {"corpus.txt", "other.txt", "--force"});
  expect_refusal(again({"--hidden", "32"}), 2, {"hidden: 64 then, 32 now", "--force"});
  expect_refusal(again({"--dtype", "bf16"}), 2, {"dtype: fp32 then, bf16 now"});
  expect_refusal(again({"--batch-size", "3"}), 2, {"batch-size: 2 then, 3 now"});
  // An impossible continuation cannot be forced, and leaves the run unchanged.
  expect_refusal(again({"--hidden", "32", "--force"}), 2, {"does not belong to this model"});
  EXPECT_EQ(config, scratch_.read("run/config.toml"));
  succeeded(again({"--seed", "3", "--force"}));
  EXPECT_EQ(6U, steps("run").size());
}

TEST_F(RunRules, ADirectoryBelongsToOneRunAtATime) {
  const Words wanted{"--steps", "40", "--json"};
  fs::create_directory(at("other"));
  const auto whole = train({"--steps", "40", "--out-dir", "whole"});
  Child first(launch(tiny("train", {"--steps", "40", "--json", "--nvme-path", "disk"})));
  first.read_lines(2);  // it waits there until the test reads on
  const auto config = scratch_.read("run/config.toml");
  for (const Words& way : {Words{"--resume", "auto"}, Words{"--resume", "auto", "--nvme-path", "other"}, Words{}})
    expect_refusal(train(way), 1, {"run is in use by another run", "--out-dir"});
  expect_refusal(terrace({"ckpt", "rm", "run"}), 1, {"is in use by another run\n  wait for it or stop it\n"});
  EXPECT_EQ(config, scratch_.read("run/config.toml"));
  // Only the run directory is exclusive, not the disk.
  succeeded(train({"--out-dir", "beside", "--nvme-path", "disk"}));
  EXPECT_EQ(weights_of(whole), weights_of(first.wait()));
}

TEST_F(RunRules, ARunDirectoryCanBeMoved) {
  const auto whole = train({"--steps", "6", "--out-dir", "whole"});
  ASSERT_EQ(0, train({}).exit);
  fs::rename(at("run"), at("moved"));
  EXPECT_EQ(weights_of(whole), weights_of(train({"--resume", "moved", "--steps", "6"})));
}

TEST_F(RunRules, ARemovedStoreMakesRoomForANewRun) {
  const auto first = succeeded(train({}));
  ASSERT_EQ(0, terrace({"ckpt", "rm", "run"}).exit);
  EXPECT_TRUE(fs::exists(at("run/metrics.jsonl")));
  expect_refusal(terrace({"ckpt", "verify", "run"}), 2, {"run has no run"});
  EXPECT_EQ(weights_of(first), weights_of(train({"--resume", "auto"})));
}

// Each step is repeated with its original rate, whatever --steps was then.
TEST_F(RunRules, ARunThatWentOnIsTheResidentOneStepForStep) {
  for (const auto* const schedule : {"cosine", "linear"}) {
    const auto with = [&](const char* steps) {
      return train({"--lr-schedule", schedule, "--warmup", "1", "--steps", steps, "--nvme-path", "disk", "--out-dir", schedule,
                    "--resume", "auto", "--verify-resident"});
    };
    const auto first = succeeded(with("4"));
    EXPECT_THAT(first.out, HasSubstr("4 of 4 losses are bit-identical"));
    const auto more = succeeded(with("8"));
    EXPECT_THAT(more.out, HasSubstr("5 of 5 losses are bit-identical"));
  }
}

TEST_F(RunRules, SavedWeightsAreTheFirstOnesOfAnotherRun) {
  ASSERT_EQ(0, train({"--save", "w.safetensors"}).exit);
  ASSERT_EQ(
      0, train(flags("--out-dir on --init-from w.safetensors --save on.safetensors --lr 1e-30 --min-lr 1e-30 --steps 1")).exit);
  EXPECT_EQ(scratch_.read("w.safetensors"), scratch_.read("on.safetensors"));
}

// Otherwise the files of a run that was killed before its first commit would never be found again.
TEST_F(RunRules, AStoreIsNamedAlikeWhetherItsRunDirectoryIsThereOrNot) {
  const auto store_of = [&](const std::string& run) {
    std::filesystem::remove_all(at("disk"));
    std::filesystem::create_directory(at("disk"));
    succeeded(train({"--steps", "1", "--out-dir", run, "--nvme-path", "disk"}));
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(at("disk"))) names.push_back(entry.path().filename().string());
    EXPECT_EQ(1U, names.size());
    return names.empty() ? "" : names.front();
  };
  const auto absent = store_of("named");
  std::filesystem::remove_all(at("named"));
  std::filesystem::create_directory(at("named"));
  EXPECT_EQ(absent, store_of("named"));
  EXPECT_NE(absent, store_of("other"));
}

}  // namespace
}  // namespace terrace::test
