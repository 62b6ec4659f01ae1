// Context parallelism from a user's view: --cp, with threads and processes, on disk, stopped, resumed, and used to generate.

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

class ContextProgram : public Ranks {
 protected:
  [[nodiscard]] Words cut(const std::string& run, const Words& more) const {
    return Words{"--heads", "4", "--steps", "4", "--grad-accumulation", "4", "--out-dir", run} + more;
  }
};

TEST_F(ContextProgram, EveryMeshTrainsWhatOneRankTrains) {
  succeeded(train(cut("one", {})));
  std::string two, ring;
  for (const auto& [run, more] :
       {std::pair<std::string, Words>{"cp2", {"--cp", "2"}},
        {"cp2-disk", {"--cp", "2", "--nvme-path", ".", "--device-memory", "2MiB", "--host-memory", "8MB"}},
        {"cp4", {"--cp", "4", "--zero", "3"}},
        {"cp8", {"--cp", "8", "--zero", "1"}},
        {"cp2-dp2", {"--cp", "2", "--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
        {"cp2-tp2", {"--cp", "2", "--tp", "2", "--sp", "--zero", "2"}},
        {"cp2-pp2", {"--cp", "2", "--pp", "2", "--zero", "1"}},
        {"ring2", {"--cp", "2", "--cp-mode", "ring"}},
        {"ring2-disk", flags("--cp 2 --cp-mode ring --nvme-path . --device-memory 2MiB --host-memory 8MB")},
        {"ring4", {"--cp", "4", "--cp-mode", "ring", "--zero", "3"}},
        {"ring2-dp2", {"--cp", "2", "--cp-mode", "ring", "--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
        {"ring2-tp2", {"--cp", "2", "--cp-mode", "ring", "--tp", "2", "--sp", "--zero", "2"}},
        {"both4", {"--cp", "4", "--cp-mode", "both", "--zero", "1"}},
        {"both8", {"--cp", "8", "--cp-mode", "both", "--cp-ring", "4", "--zero", "2"}},
        {"two-rings2", {"--cp", "2", "--cp-mode", "two-rings"}},
        {"two-rings4-disk", flags("--cp 4 --cp-mode two-rings --nvme-path . --device-memory 2MiB --host-memory 8MB")},
        {"two-rings2-dp2", {"--cp", "2", "--cp-mode", "two-rings", "--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
        {"ring2-pp2", {"--cp", "2", "--cp-mode", "ring", "--pp", "2", "--zero", "1"}}}) {
    const auto many = succeeded(train(cut(run, more)));
    expect_near("one", run);
    if (run == "cp2") two = weights_of(many);
    if (run == "ring2") ring = weights_of(many);
    if (run.ends_with("2-disk")) {
      EXPECT_EQ(run.starts_with("ring") ? ring : two, weights_of(many)) << run;
    }
  }
#ifdef TERRACE_MPIRUN
  for (const auto* const mode : {"ulysses", "ring"}) {
    const auto processes =
        run(apart(2, tiny("train", cut(std::string("processes-") + mode, {"--cp", "2", "--cp-mode", mode}))));
    EXPECT_EQ(std::string_view(mode) == "ring" ? ring : two, weights_of(processes));
  }
#endif
}

// The last rank has fewer heads; with little memory, many layouts are possible.
TEST_F(ContextProgram, UnevenHeadsInLittleMemoryTrainWhatOneRankTrains) {
  const Words uneven{"--hidden", "60", "--heads", "5", "--seq-len", "33", "--dtype", "fp64", "--out-dir"};
  ASSERT_EQ(0, train(uneven + Words{"one"}).exit);
  succeeded(
      train(uneven + Words{"three", "--cp", "3", "--nvme-path", ".", "--device-memory", "1111111", "--host-memory", "9MB"}));
  expect_near("one", "three", 1e-9);
}

// This includes generated text at positions where the window no longer contains the prompt.
TEST_F(ContextProgram, AWindowTrainsAndGeneratesOnAnyNumberOfRanks) {
  const Words window{"--window", "9", "--lr-schedule", "constant"};
  const auto train_to = [&](const std::string& run, const Words& more) { return train(cut(run, window + more)); };
  ASSERT_EQ(0, train_to("one", {}).exit);
  ASSERT_EQ(0, train(cut("unlimited", {"--lr-schedule", "constant"})).exit);
  ASSERT_EQ(0, train_to("ring", {"--cp", "4", "--cp-mode", "ring"}).exit);
  ASSERT_EQ(0, train_to("heads", {"--cp", "2"}).exit);
  for (const auto* const run : {"ring", "heads"}) expect_near("one", run);
  EXPECT_EQ(text_of("one", "the quick brown ", 15), text_of("ring", "the quick brown ", 15));
  EXPECT_FALSE(text_of("unlimited", "the quick brown ", 15).empty());
  ASSERT_EQ(0, train_to("longer", {"--window", "33333"}).exit);
  EXPECT_EQ(steps("unlimited"), steps("longer")) << "no sequence is so long";
  expect_refusal(train_to("one", {"--window", "8", "--resume", "auto", "--steps", "6"}), 2, {"window"});
}

// The first block has a window and the second none.
TEST_F(ContextProgram, BlocksMayHaveDifferentWindows) {
  const Words windows{"--window", "9,0", "--lr-schedule", "constant"};
  const auto train_to = [&](const std::string& run, const Words& more) { return train(cut(run, windows + more)); };
  ASSERT_EQ(0, train_to("one", {}).exit);
  for (const auto& [run, more] : {std::pair<std::string, Words>{"ring", {"--cp", "4", "--cp-mode", "ring"}},
                                  {"heads", {"--cp", "2"}},
                                  {"grid", {"--tp", "4", "--tp-mode", "2d", "--sp"}}}) {
    succeeded(train_to(run, more));
    expect_near("one", run);
  }
  ASSERT_EQ(0, train(cut("both", {"--window", "9", "--lr-schedule", "constant"})).exit);
  EXPECT_NE(steps("one").front().loss, steps("both").front().loss);
  EXPECT_EQ(text_of("one", "the quick brown ", 15), text_of("ring", "the quick brown ", 15));
  expect_refusal(train_to("none", {"--window", "9,0,9"}), 2, {"--window 9,0,9 has 3 numbers for --layers 2"});
  expect_refusal(train_to("none", {"--window", "9,,9"}), 2, {"--window"});
  expect_refusal(train_to("one", {"--window", "0,9", "--resume", "auto", "--steps", "6"}), 2, {"window: 9,0"});
  EXPECT_FALSE(std::filesystem::exists(at("none")));
}

// Runs from before windows could be a list store a number.
TEST_F(ContextProgram, ARunWithANumberAsItsWindowContinues) {
  ASSERT_EQ(0, train(cut("old", {"--window", "9", "--steps", "2"})).exit);
  for (const auto* const name : {"old/run.json", "old/run.copy.json"}) {
    auto run = json_in(name);  // without its checksum
    run["fingerprint"]["window"] = 9;
    scratch_.write(name, run.dump());
  }
  succeeded(train(cut("old", {"--window", "9", "--resume", "auto", "--steps", "3"})));
}

TEST_F(ContextProgram, OptimizersOfWholeLayersShareTheirState) {
  ASSERT_EQ(0, train(cut("one", {"--optimizer", "muon"})).exit);
  for (const auto* const zero : {"0", "2"}) {
    const auto name = std::string("muon") + zero;
    succeeded(train(cut(name, {"--optimizer", "muon", "--cp", "2", "--zero", zero})));
    expect_near("one", name, 2e-4);
  }
}

TEST_F(ContextProgram, ARunGoesOnWithAnotherNumberOfRanksAndGenerates) {
  const Words constant{"--lr-schedule", "constant"};
  ASSERT_EQ(0, train(cut("constant", constant + Words{"--steps", "5"})).exit);
  ASSERT_EQ(0, train(cut("run", constant + Words{"--steps", "2", "--cp", "2", "--zero", "3"})).exit);
  for (const auto& [until, more] : {std::pair<std::string, Words>{"3", {"--cp", "4", "--zero", "1"}},
                                    {"4", {}},
                                    {"5", {"--cp", "4", "--cp-mode", "both"}}}) {
    succeeded(train(cut("run", constant + Words{"--steps", until, "--resume", "auto"} + more)));
    EXPECT_EQ(0, terrace({"ckpt", "verify", "run"}).exit);
  }
  expect_near("constant", "run");
  EXPECT_EQ(text_of("constant"), text_of("run"));
}

TEST_F(ContextProgram, WhatItCannotDoIsRefusedWithTheNearestThatItCan) {
  const auto five = train(cut("none", {"--cp", "5"}));
  EXPECT_EQ(2, five.exit);
  EXPECT_THAT(five.err, HasSubstr("--cp 5: it must divide"));
  EXPECT_THAT(five.err, HasSubstr("nearest legal: 4 and 8"));
  const auto ring = train(cut("none", {"--cp", "3", "--cp-mode", "ring"}));
  EXPECT_EQ(2, ring.exit);
  EXPECT_THAT(ring.err, HasSubstr("--cp 3: it must divide"));
  EXPECT_THAT(ring.err, HasSubstr("nearest legal: 2 and 4"));
  const auto both = train(cut("none", {"--cp", "4", "--cp-mode", "both", "--cp-ring", "3"}));
  EXPECT_EQ(2, both.exit);
  EXPECT_THAT(both.err, HasSubstr("be a multiple of the 3 ranks of a ring"));
  const auto two_rings = train(cut("none", {"--cp", "5", "--cp-mode", "two-rings"}));
  EXPECT_EQ(2, two_rings.exit);
  EXPECT_THAT(two_rings.err, HasSubstr("nearest legal: 4 and 8"));
  expect_refusal(train(cut("none", {"--cp-mode", "two-rings"})), 2, {"--cp-mode two-rings needs ranks that share a sequence"});
  expect_refusal(train(cut("none", {"--cp", "2", "--canonical-reduction"})), 2, {"--cp 2", "--canonical-reduction"});
  expect_refusal(train(cut("none", {"--cp", "2", "--pp", "2", "--schedule", "chimera"})), 2, {"--cp 2", "--schedule 1f1b"});
  EXPECT_FALSE(std::filesystem::exists(at("none")));
}

// Ranks hold different chunks. Here the rank that reserves the most is not the first one.
TEST_F(ContextProgram, PlannedPeaksAreThoseOfTheRankThatReservesMost) {
  const Words sizes{"--layers", "1", "--hidden", "12", "--heads", "2", "--seq-len", "24", "--vocab", "509"};
  const Words batch{"--batch-size", "3", "--grad-accumulation", "3", "--steps", "1", "--eval-batches", "1"};
  const Words ways{"--cp", "4", "--zero", "1", "--prefetch-depth", "5", "--activations", "keep", "--nvme-path", "disk"};
  const auto words = Words{"--model", "olmo2", "--dtype", "bf16", "--data-format", "bytes"} + sizes + batch + ways +
                     Words{"--device-memory", "299417", "--host-memory", "746168"};
  succeeded(train(words));
  const auto peaks = json_in("run/result.json").at("peak_bytes");
  EXPECT_EQ(294912, peaks.at("device")) << "the first rank alone has 274432";
  EXPECT_EQ(peaks, json_in("run/plan.json").at("peak_bytes"));
  EXPECT_EQ(peaks, nlohmann::json::parse(succeeded(terrace(tiny("plan", words + Words{"--json"}))).out).at("peak_bytes"));
}

// Chunks may still change their places after many rounds of an evaluation.
TEST_F(ContextProgram, PlannedPeaksAreThoseOfAllRoundsOfAnEvaluation) {
  const Words sizes{"--layers", "3", "--hidden", "128", "--heads", "8", "--seq-len", "128", "--vocab", "257", "--untied"};
  const Words batch{"--batch-size", "1", "--steps", "5", "--warmup", "0", "--eval-batches", "30", "--eval-first"};
  const Words ways{"--cp", "4", "--zero", "2", "--order", "vertical", "--prefetch-depth", "3", "--recompute", "none"};
  const Words room{"--nvme-path", "disk", "--device-memory", "1631492", "--host-memory", "3190440", "--save", "s.safetensors"};
  succeeded(train(Words{"--model", "olmo2", "--dtype", "bf16", "--data-format", "bytes"} + sizes + batch + ways + room));
  EXPECT_EQ(json_in("run/plan.json").at("peak_bytes"), json_in("run/result.json").at("peak_bytes"));
}

TEST_F(ContextProgram, APlanSaysWhatARankHoldsAndSends) {
  const auto whole = terrace(tiny("plan", {"--heads", "4", "--json"})),
             part = succeeded(terrace(tiny("plan", {"--heads", "4", "--cp", "4", "--zero", "3", "--json"})));
  const auto all = nlohmann::json::parse(whole.out), one = nlohmann::json::parse(part.out);
  EXPECT_EQ(all["parameters"], one["parameters"]);
  EXPECT_LT(one["state_bytes"].get<double>(), 0.5 * all["state_bytes"].get<double>());
  EXPECT_LT(one["peak_bytes"]["device"].get<double>(), all["peak_bytes"]["device"].get<double>());
  EXPECT_GT(one["communication"]["seconds"].get<double>(), 0);
}

}  // namespace
}  // namespace terrace::test
