// Mixtures of experts from a user's view: trained, planned, resumed, saved, read back, and used to generate.

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

class ExpertsProgram : public Ranks {
 protected:
  [[nodiscard]] Words mixed(const std::string& run, const Words& more) const {
    return Words{"--experts", "4", "--router-aux-loss",   "0.01", "--router-z-loss", "0.001", "--heads", "4",
                 "--steps",   "4", "--grad-accumulation", "4",    "--out-dir",       run} +
           more;
  }
};

TEST_F(ExpertsProgram, EveryMeshTrainsAndSaysWhatOneRankDoes) {
  succeeded(train(mixed("one", {})));
  const auto text = text_of("one");
  for (const auto& [run, more] : {std::pair<std::string, Words>{"tp2", {"--tp", "2", "--sp"}},
                                  {"dp2", {"--dp", "2", "--zero", "3", "--grad-accumulation", "2"}},
                                  {"cp2", {"--cp", "2", "--zero", "2"}},
                                  {"ep4", {"--ep", "4", "--grad-accumulation", "1"}},
                                  {"ep2dp2", {"--ep", "2", "--dp", "2", "--zero", "3", "--grad-accumulation", "1"}},
                                  {"ep2pp2tp2", {"--ep", "2", "--pp", "2", "--tp", "2", "--grad-accumulation", "2"}},
                                  {"pp2", {"--pp", "2", "--zero", "1"}}}) {
    succeeded(train(mixed(run, more)));
    expect_near("one", run);
    EXPECT_EQ(text, text_of(run)) << run;
  }
}

TEST_F(ExpertsProgram, LittleMemoryAndAResumedRunGiveTheSameBits) {
  succeeded(train(mixed("whole", {})));
  const Words little{"--nvme-path", ".", "--device-memory", "2MiB", "--host-memory", "8MB"};
  ASSERT_EQ(0, train(mixed("parts", little + Words{"--steps", "2", "--lr-schedule", "constant"})).exit);
  const auto rest = succeeded(train(mixed("parts", little + Words{"--resume", "auto", "--lr-schedule", "constant"})));
  EXPECT_EQ(weights_of(train(mixed("constant", {"--lr-schedule", "constant"}))), weights_of(rest));
}

TEST_F(ExpertsProgram, SavedExpertsAreReadBackWhole) {
  succeeded(train(mixed("saved", {"--tp", "2", "--save", "experts.safetensors"})));
  succeeded(train(mixed("again", {"--init-from", "experts.safetensors", "--steps", "1"})));
  const auto fewer = train(mixed("fewer", {"--init-from", "experts.safetensors", "--experts", "3"}));
  EXPECT_NE(0, fewer.exit) << "a file with other experts was accepted";
}

TEST_F(ExpertsProgram, ARunGoesOnWithExpertsOnOtherRanksAndItsFileIsThatOfOneRank) {
  const Words constant{"--lr-schedule", "constant", "--dtype", "fp64"};
  succeeded(train(mixed("whole", constant + Words{"--save", "whole.safetensors"})));
  succeeded(train(mixed("run", constant + Words{"--ep", "4", "--grad-accumulation", "1", "--steps", "1"})));
  succeeded(train(mixed("run", constant + flags("--ep 2 --dp 2 --zero 2 --grad-accumulation 1 --steps 2 --resume auto"))));
  succeeded(train(mixed("run", constant + Words{"--steps", "3", "--resume", "auto"})));
  succeeded(train(mixed("run", constant + flags("--ep 2 --tp 2 --grad-accumulation 2 --resume auto --save run.safetensors"))));
  expect_near("whole", "run");
  EXPECT_EQ(std::filesystem::file_size(at("whole.safetensors")), std::filesystem::file_size(at("run.safetensors")));
  succeeded(train(mixed(
      "again", constant + Words{"--init-from", "run.safetensors", "--ep", "2", "--grad-accumulation", "2", "--steps", "1"})));
}

TEST_F(ExpertsProgram, MetricsSayHowTokensWereRouted) {
  ASSERT_EQ(0, train(mixed("run", {"--expert-capacity", "0.5"})).exit);
  std::ifstream file(at("run") / "metrics.jsonl");
  std::string line;
  int lines = 0;
  while (std::getline(file, line)) {
    const auto router = nlohmann::json::parse(line)["router"];
    EXPECT_GE(router["balance"].get<double>(), 0.5);
    EXPECT_LE(router["balance"].get<double>(), 4.0);
    EXPECT_GT(router["z"].get<double>(), 0);
    EXPECT_GT(router["dropped"].get<double>(), 0);
    ++lines;
  }
  EXPECT_EQ(4, lines);
}

TEST_F(ExpertsProgram, WhatItCannotDoIsRefusedWithTheNearestThatItCan) {
  expect_refusal(train(mixed("none", {"--experts-per-token", "5"})), 2, {"--experts-per-token 5", "4"});
  expect_refusal(train(Words{"--router-aux-loss", "0.1", "--out-dir", "none"}), 2, {"--router-aux-loss", "--experts"});
  expect_refusal(train(mixed("none", {"--cp", "2", "--expert-capacity", "1"})), 2, {"--expert-capacity", "--cp 2"});
  expect_refusal(train(mixed("none", {"--ep", "3"})), 2, {"--ep 3", "it must divide 4 experts", "nearest legal: 2 and 4"});
  expect_refusal(train(Words{"--ep", "2", "--out-dir", "none"}), 2, {"--ep 2", "the model has no experts"});
  expect_refusal(train(mixed("none", {"--ep", "2", "--canonical-reduction"})), 2, {"--canonical-reduction", "--ep 2"});
  EXPECT_FALSE(std::filesystem::exists(at("none")));
}

}  // namespace
}  // namespace terrace::test
