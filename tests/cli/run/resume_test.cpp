// A run is continued by its name alone: its original flags apply unless the next start gives other ones.
#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class ResumedByName : public Cli {
 protected:
  void SetUp() override {
    fs::create_directory(at("elsewhere"));
    fs::create_directory(at("disk"));
    whole_ = train({"--steps", "9", "--out-dir", "whole"});
    ASSERT_EQ(0, whole_.exit) << whole_.described;
  }
  [[nodiscard]] Outcome elsewhere(const Words& words) const {
    auto launched = launch(words);
    launched.folder = at("elsewhere");
    return run(launched);
  }
  Outcome whole_;
};

TEST_F(ResumedByName, GoesOnFromAnyFolderWithoutFlags) {
  ASSERT_EQ(
      0,
      train(flags("--steps 2 --nvme-path disk --device-memory 1MiB --host-memory 1MiB --save saved.safetensors --json")).exit);
  const auto steps_then = steps("run");
  succeeded(elsewhere({"train", "--resume", at("run").string()}));
  const auto rest = succeeded(elsewhere({"train", "--resume", "../run", "--steps", "9"}));
  EXPECT_THAT(rest.out, HasSubstr("resumed after step 2; the state is in " + at("disk").string())) << "and no JSON";
  EXPECT_EQ(weights_of(whole_), weights_of(rest));
  EXPECT_EQ(steps("whole"), steps("run"));
  EXPECT_TRUE(fs::exists(at("saved.safetensors")));
  EXPECT_TRUE(fs::is_empty(at("elsewhere")));
  // Again, with the configuration written by the second start.
  EXPECT_EQ(weights_of(whole_), weights_of(elsewhere({"train", "--resume", "../run"})));
}

TEST_F(ResumedByName, FlagsStandAboveItsSettings) {
  ASSERT_EQ(0, train({"--steps", "2", "--force"}).exit);
  expect_refusal(terrace({"train", "--resume", "run", "--seed", "3"}), 2, {"seed: 1 then, 3 now"});
  scratch_.write("more.toml", "steps = 9\ndevice-memory = \"2MiB\"\nresume = \"run\"\n");
  const auto rest = succeeded(terrace({"train", "--config", "more.toml", "--set", "host-memory=8MiB"}));
  EXPECT_THAT(rest.out, HasSubstr("device 2.00 MiB, "));
  EXPECT_EQ(weights_of(whole_), weights_of(rest));
}

// The training length is given again, in either way.
TEST_F(ResumedByName, StepsStandAboveEpochs) {
  ASSERT_EQ(0, train({"--epochs", "0.02"}).exit);
  EXPECT_EQ(3U, steps("run").size()) << "0.02 times 296 sequences, two a step";
  EXPECT_EQ(0, terrace({"train", "--resume", "run"}).exit);
  EXPECT_EQ(3U, steps("run").size());
  ASSERT_EQ(0, terrace({"train", "--resume", "run", "--epochs", "0.03"}).exit);
  EXPECT_EQ(5U, steps("run").size());
  EXPECT_EQ(weights_of(whole_), weights_of(terrace({"train", "--resume", "run", "--steps", "9"})));
  expect_refusal(train({"--steps", "9", "--epochs", "1", "--out-dir", "none"}), 2, {"--steps and --epochs both say how long"});
}

// Even if the original file has changed or is gone.
TEST_F(ResumedByName, KeepsItsTokenizer) {
  ASSERT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
  ASSERT_EQ(0, train({"--tokenizer", "tokenizer.json", "--out-dir", "text"}).exit);
  const auto kept = scratch_.read("text/tokenizer/tokenizer.json");
  ASSERT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "270", "--out", "other.json"}).exit);
  fs::rename(at("other.json"), at("tokenizer.json"));
  for (const auto* const steps : {"5", "6"}) {
    succeeded(terrace({"train", "--resume", "text", "--steps", steps}));
    EXPECT_EQ(kept, scratch_.read("text/tokenizer/tokenizer.json"));
    fs::remove(at("tokenizer.json"));
  }
}

TEST_F(ResumedByName, OrAloneWhichMeansAuto) {
  succeeded(train({"--resume", "--steps", "3"}));
  const auto rest = succeeded(train({"--steps", "9", "--resume"}));
  EXPECT_THAT(rest.out, HasSubstr("resumed after step 3"));
  EXPECT_EQ(weights_of(whole_), weights_of(rest));
}

TEST_F(ResumedByName, IsRefusedWhereNoRunIs) {
  for (const std::string name : {"nowhere", "elsewhere"})
    expect_refusal(terrace({"train", "--resume", name}), 2, {"--resume " + name + ": this directory has no run"});
  EXPECT_FALSE(fs::exists(at("nowhere")));
}

// The number of ranks in the process stays the same; another pipeline has other stages.
TEST_F(ResumedByName, KeepsItsRanksUnlessOthersAreGiven) {
  ASSERT_EQ(0, train({"--steps", "2", "--dp", "2", "--grad-accumulation", "2", "--canonical-reduction"}).exit);
  const auto same = succeeded(terrace({"train", "--resume", "run", "--steps", "4"}));
  EXPECT_THAT(same.out, HasSubstr("of 2"));
  ASSERT_EQ(0, train({"--steps", "2", "--pp", "2", "--stage-layers", "2,4", "--out-dir", "pipe"}).exit);
  const auto piped = succeeded(terrace({"train", "--resume", "pipe", "--steps", "4"}));
  EXPECT_THAT(piped.out, HasSubstr("stages of 2,4 layers"));
  EXPECT_EQ(weights_of(whole_), weights_of(terrace({"train", "--resume", "pipe", "--steps", "9", "--pp", "1"})));
}

}  // namespace
}  // namespace terrace::test
