// `terrace eval` of runs and of model directories: the loss equals the one that training sees, whatever the tiers.
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <map>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class Evaluation : public Cli {
 protected:
  void SetUp() override {
    succeeded(train({"--eval-batches", "0"}));
    succeeded(terrace({"ckpt", "export", "run", "model"}));
  }
  [[nodiscard]] nlohmann::json eval(const Words& words) const {
    const auto outcome = succeeded(terrace(Words{"eval"} + words + Words{"--json"}));
    return outcome.exit == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json::array();
  }
  [[nodiscard]] double loss(const Words& words) const {
    const auto all = eval(words);
    return all.empty() ? -1 : all.at(0).value("loss", -1.0);
  }
  // The loss of the first training step, before its update, on all 312 sequences of 64 bytes at once.
  [[nodiscard]] double loss_of_training(const Words& words) const {
    succeeded(train(words + flags("--steps 1 --batch-size 8 --grad-accumulation 39 --eval-batches 0 --out-dir once")));
    return metrics("once").at(0).at("loss").get<double>();
  }
  [[nodiscard]] std::map<std::string, std::string> files_of(const std::string& folder) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(at(folder)))
      if (entry.is_regular_file()) {
        std::ifstream in(entry.path(), std::ios::binary);
        files[entry.path().string()] = {std::istreambuf_iterator<char>(in), {}};
      }
    return files;
  }
};

TEST_F(Evaluation, IsTheLossThatTrainingSees) {
  const auto before = files_of("run");
  const auto all = eval({"run", "--data", "corpus.txt"});
  ASSERT_EQ(1U, all.size());
  EXPECT_EQ("run", all[0].at("model"));
  EXPECT_EQ("corpus.txt", all[0].at("data"));
  EXPECT_EQ(312 * 64, all[0].at("tokens"));
  const double loss = all[0].at("loss");
  EXPECT_NEAR(loss_of_training({"--model", "./model"}), loss, 1e-6 * loss);
  EXPECT_DOUBLE_EQ(std::exp(loss), all[0].at("perplexity").get<double>());
  EXPECT_EQ(before, files_of("run")) << "it only reads";
}

TEST_F(Evaluation, IsTheSameFromEveryTierAndOfTheExportedModel) {
  const Words data{"--data", "corpus.txt", "--batch-size", "2"};
  const double whole = loss(Words{"run"} + data);
  for (const auto& more : {Words{"--device-memory", "1MiB", "--host-memory", "1MiB"}, Words{"--threads", "1"}})
    EXPECT_EQ(whole, loss(Words{"run"} + data + more));
  EXPECT_EQ(whole, loss(Words{"model"} + data + Words{"--seq-len", "64"}));
  EXPECT_EQ(whole,
            loss(Words{"model"} + data + Words{"--nvme-path", "disk", "--device-memory", "700KiB", "--host-memory", "200KiB"}));
  EXPECT_TRUE(fs::is_empty(at("disk")));
  // Rows that only fill up a micro-batch are computed, but not counted.
  EXPECT_NEAR(whole, loss({"run", "--data", "corpus.txt", "--device-memory", "1MiB"}), 1e-6 * whole) << "with fewer rows";
  for (const auto* const rows : {"1", "7", "312", "313"})
    EXPECT_NEAR(whole, loss(Words{"run"} + data + Words{"--batch-size", rows}), 1e-6 * whole) << rows;
  const auto some = eval(Words{"run"} + data + Words{"--sequences", "5", "--batch-size", "2"});
  EXPECT_EQ(5 * 64, some.at(0).at("tokens"));
}

TEST_F(Evaluation, OfRanksIsGathered) {
  const auto one = train({"--grad-accumulation", "2", "--canonical-reduction", "--out-dir", "one"});
  const auto many = train({"--dp", "2", "--zero", "3", "--canonical-reduction", "--out-dir", "many"});
  ASSERT_EQ(weights_of(one), weights_of(many));
  EXPECT_EQ(loss({"one", "--data", "corpus.txt"}), loss({"many", "--data", "corpus.txt"}));
}

TEST_F(Evaluation, ComparesDirectoriesAndSources) {
  scratch_.write("other.txt", EnglishText(kCorpusSeed + 1).of(kCorpusBytes / 2));
  const auto all = eval({"run", "model", "--data", "corpus.txt", "other.txt"});
  ASSERT_EQ(6U, all.size());
  for (const std::size_t of : {0U, 3U}) {
    const double first = all[of].at("loss"), second = all[of + 1].at("loss"), mean = all[of + 2].at("loss");
    const double tokens = all[of].at("tokens"), more = all[of + 1].at("tokens");
    EXPECT_EQ("all", all[of + 2].at("data"));
    EXPECT_NEAR((first * tokens + second * more) / (tokens + more), mean, 1e-12 * mean);
  }
  EXPECT_EQ(all[0].at("loss"), all[3].at("loss"));
  // Files after the same weight form one source.
  EXPECT_EQ(1U, eval({"run", "--data", "1", "corpus.txt", "other.txt"}).size());
  const auto table = terrace({"eval", "run", "model", "--data", "corpus.txt"});
  ASSERT_EQ(3U, table.lines().size()) << table.described;
  EXPECT_THAT(table.lines()[0], AllOf(HasSubstr("loss"), HasSubstr("perplexity")));
  EXPECT_THAT(table.lines()[2], HasSubstr(fmt::format("{:.5f}", all[3].at("loss").get<double>())));
}

TEST_F(Evaluation, OfABaseWithAnAdapterIsThatOfTheRun) {
  succeeded(train(flags("--model ./model --lora-rank 4 --lora-alpha 7 --lora-targets q,v,down --lr 0.01 --out-dir tuned")));
  ASSERT_EQ(0, terrace({"ckpt", "export", "tuned", "adapter"}).exit);
  const Words data{"--data", "corpus.txt"};
  const double of_run = loss(Words{"tuned"} + data), of_base = loss(Words{"model"} + data);
  EXPECT_NE(of_run, of_base);
  EXPECT_EQ(of_run, loss(Words{"model", "--adapter", "adapter"} + data));
  const Words generated{"--prompt", "The ", "--max-tokens", "20", "--temperature", "0"};
  EXPECT_EQ(terrace(Words{"generate", "tuned"} + generated).out,
            terrace(Words{"generate", "model", "--adapter", "adapter"} + generated).out);
  expect_refusal(terrace(Words{"eval", "tuned", "--adapter", "adapter"} + data), 2, {"\"tuned\" is a run"});
  expect_refusal(terrace(Words{"eval", "model", "--adapter", "model"} + data), 2, {"adapter_config.json"});
}

TEST_F(Evaluation, GeneratesFromAModelsDirectoryAsFromItsRun) {
  const Words words{"--prompt", "The ", "--max-tokens", "30", "--temperature", "0"};
  const auto of_run = terrace(Words{"generate", "run"} + words),
             of_model = succeeded(terrace(Words{"generate", "model"} + words));
  EXPECT_EQ(of_run.out, of_model.out);
  const auto from_disk = terrace(Words{"generate", "model", "--nvme-path", "disk", "--host-memory", "200KiB"} + words);
  EXPECT_EQ(of_run.out, from_disk.out) << from_disk.described;
  EXPECT_TRUE(fs::is_empty(at("disk")));
}

TEST_F(Evaluation, OfConversationsCountsTheirAnswers) {
  scratch_.write("chat.jsonl",
                 R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there"}]})"
                 "\n"
                 R"({"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "It is me"}]})"
                 "\n");
  ASSERT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
  succeeded(train(flags("--data chat.jsonl --tokenizer tokenizer.json --vocab 280 --eval-batches 0 --out-dir chats")));
  fs::remove(at("tokenizer.json"));  // the run has its own copy
  const auto all = eval({"chats", "--data", "chat.jsonl"});
  ASSERT_EQ(1U, all.size());
  EXPECT_GT(all[0].at("tokens"), 4);
  EXPECT_LT(all[0].at("tokens"), 128);
  EXPECT_GT(all[0].at("loss"), 0);
  EXPECT_EQ(1U, eval({"chats", "--data", "corpus.txt"}).size()) << "text, in its tokens";
}

TEST_F(Evaluation, RefusesWhatItCannotRead) {
  fs::create_directory(at("nothing"));
  const Words data{"--data", "corpus.txt"};
  expect_refusal(terrace(Words{"eval", "nothing"} + data), 2,
                 {"\"nothing\" is neither a run, because it has no config.toml, nor a model, because it has no config.json"});
  expect_refusal(terrace({"eval", "run"}), 2, {"eval needs --data"});
  expect_refusal(terrace(Words{"eval"} + data), 2, {"eval needs the directory of a run, or of a model"});
  expect_refusal(terrace(Words{"eval", "run", "--seq-len", "65"} + data), 2,
                 {"--seq-len 65: the model in run has 64 positions"});
  expect_refusal(terrace(Words{"eval", "run", "--data-format", "u17"} + data), 2, {"u17"});
  expect_refusal(terrace({"eval", "run", "--data", "none.txt"}), 2, {"none.txt"});
  expect_refusal(terrace(Words{"eval", "run", "--device-memory", "1KiB"} + data), 3, {"--device-memory"});
}

}  // namespace
}  // namespace terrace::test
