// --eval-data: evaluations use separate files, and all rows of --data are used for training.
#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

class EvalData : public Cli {
 protected:
  void SetUp() override { scratch_.write("other.txt", EnglishText(kCorpusSeed + 1).of(kCorpusBytes / 10)); }
  [[nodiscard]] double held_out(const std::string& run) const { return json_in(run + "/result.json").at("eval_loss"); }
  [[nodiscard]] double evaluated(const Words& words) const {
    const auto outcome = succeeded(terrace(Words{"eval"} + words + Words{"--json"}));
    return outcome.exit == 0 ? nlohmann::json::parse(outcome.out).at(0).at("loss").get<double>() : -1;
  }
};

TEST_F(EvalData, IsEvaluatedAndAllOfTheDataIsTrainedOn) {
  const auto without = train({"--eval-batches", "0", "--out-dir", "without"});
  const auto outcome =
      succeeded(train({"--eval-data", "other.txt", "--eval-interval", "2", "--eval-first", "--eval-batches", "3"}));
  EXPECT_EQ(weights_of(without), weights_of(outcome));
  EXPECT_THAT(outcome.out, HasSubstr("evaluations read 6 of the 31 sequences of other.txt\n"));
  EXPECT_EQ(evaluated({"run", "--data", "other.txt", "--sequences", "6", "--batch-size", "2"}), held_out("run"));
  // The whole file, and a part of it again.
  ASSERT_EQ(0, train({"--eval-data", "other.txt", "--eval-batches", "16", "--out-dir", "again"}).exit);
  EXPECT_NEAR(evaluated({"run", "--data", "other.txt"}), held_out("again"), 0.02);
}

TEST_F(EvalData, MayBeGivenToARunThatHeldOutAPart) {
  const auto whole = train({"--steps", "6", "--out-dir", "whole"});
  ASSERT_EQ(0, train({}).exit);
  const auto rest = succeeded(terrace({"train", "--resume", "run", "--steps", "6", "--eval-data", "other.txt"}));
  EXPECT_EQ(weights_of(whole), weights_of(rest)) << "it trains on what it trained on";
  EXPECT_NE(held_out("whole"), held_out("run"));
  // In the other direction: nothing was held out.
  ASSERT_EQ(0, train({"--eval-data", "other.txt", "--out-dir", "all"}).exit);
  EXPECT_EQ(0, terrace({"train", "--resume", "all", "--steps", "6"}).exit);
  expect_refusal(train({"--resume", "auto", "--steps", "8", "--out-dir", "all"}), 2, {"--eval-data", "nothing to evaluate on"});
}

TEST_F(EvalData, IsTheSameOnRanksAndOfSources) {
  const Words more{"--eval-data", "3", "other.txt", "1", "corpus.txt", "--eval-batches", "2", "--canonical-reduction"};
  ASSERT_EQ(0, train(more + Words{"--grad-accumulation", "2", "--out-dir", "one"}).exit);
  succeeded(train(more + Words{"--dp", "2", "--out-dir", "two"}));
  EXPECT_EQ(json_in("one/result.json").at("held_out"), json_in("two/result.json").at("held_out"));
  EXPECT_TRUE(json_in("two/result.json").at("held_out").contains("other.txt"));
  EXPECT_EQ(held_out("one"), held_out("two"));
}

TEST_F(EvalData, IsRefusedWhereItCannotBe) {
  scratch_.write("ids.u16", std::string(2000, 'a'));
  scratch_.write("chat.jsonl", R"({"messages": []})");
  for (const auto& [words, said] : std::vector<std::pair<Words, std::vector<std::string>>>{
           {{"--eval-data", "none.txt"}, {"--eval-data: \"none.txt\" does not exist"}},
           {{"--eval-data", "disk"}, {"--eval-data: \"disk\" is a directory"}},
           {{"--eval-data", "chat.jsonl"}, {"corpus.txt is bytes, and chat.jsonl is jsonl"}},
           {{"--eval-data", "other.txt", "--eval-batches", "0"}, {"which evaluates nothing"}},
           {{"--eval-data", "ids.u16", "--data", "ids.u16", "--data-format", "u16"}, {"ids.u16", "vocabulary of 256"}},
           {{"--eval-data", "2", "other.txt", "3"}, {"the weight 3 has no files"}},
           {{"--eval-data", "other.txt", "--save", "other.txt"}, {"is a file of --eval-data"}}}) {
    expect_refusal(train(words), 2, said);
    EXPECT_FALSE(std::filesystem::exists(at("run")));
  }
}

}  // namespace
}  // namespace terrace::test
