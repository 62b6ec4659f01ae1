// The first commands of users, with as few flags as possible: what is chosen for them, and that the choice is printed.
#include <fmt/format.h>

#include <regex>

#include <terrace/core/machine/machine.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class FirstCommands : public Cli {
 protected:
  // A model as it is usually published: bf16 weights, a config.json, a tokenizer.
  void SetUp() override {
    ASSERT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
    ASSERT_EQ(0, terrace({"tokenize", "corpus.txt", "--tokenizer", "tokenizer.json", "--out", "ids.u16"}).exit);
    succeeded(train(flags("--data ids.u16 --vocab 280 --tokenizer tokenizer.json --dtype bf16 --steps 1 --out-dir made")));
    ASSERT_EQ(0, terrace({"ckpt", "export", "made", "model"}).exit);
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += fmt::format(R"({{"prompt":"question {}","response":"answer {}"}})"
                           "\n",
                           i, i * i);
    scratch_.write("chat.jsonl", lines);
  }
  [[nodiscard]] Outcome with_gpu(Words words) const {
    auto started = launch(std::move(words));
    started.environment["LD_LIBRARY_PATH"] = TERRACE_FAKE_CUDA_FOLDER;
    started.environment["TERRACE_MODULE_PATH"] = TERRACE_FAKE_CUDA_FOLDER;
    return run(started);
  }
};

TEST_F(FirstCommands, ChooseTheRestAndSayIt) {
  struct Row {
    Words words;
    std::vector<std::string> said;  // in this order, without and with a GPU
  };
  const Words small{"--layers", "2", "--hidden", "64", "--heads", "4", "--seq-len", "64", "--assumed-costs"};
  const std::vector<Row> rows{
      {Words{"train", "--data", "corpus.txt", "--steps", "2"} + small, {"data: corpus.txt: its bytes are the tokens"}},
      {Words{"train", "--data", "corpus.txt", "--tokenizer", "tokenizer.json", "--steps", "2"} + small,
       {"data: corpus.txt: text, in the tokens of tokenizer.json", "--vocab 280 (the tokenizer's)"}},
      {Words{"train", "--data", "chat.jsonl", "--tokenizer", "tokenizer.json", "--steps", "2"} + small,
       {"data: chat.jsonl: conversations", "--vocab 280 (the tokenizer's)"}},
      {Words{"train", "--data", "ids.u16", "--tokenizer", "tokenizer.json", "--steps", "2"} + small,
       {"data: ids.u16: token ids (u16)", "--vocab 280 (the tokenizer's)"}},
      {{"train", "--model", "model", "--data", "chat.jsonl", "--epochs", "2", "--assumed-costs"},
       {"data: chat.jsonl: conversations", "--dtype bf16 (its config.json)", "--seq-len 64 (as long as the model's)",
        "--lr 1e-05 (usual for all weights of a published model)", "2 epochs of"}},
      {{"train", "--model", "model", "--data", "chat.jsonl", "--lora-rank", "4", "--steps", "2", "--assumed-costs"},
       {"--dtype bf16", "--lora-targets all", "--lr 0.0002 (usual for adapters)"}},
      {{"train", "--model", "model", "--data", "corpus.txt", "--steps", "2", "--assumed-costs"},
       {"data: corpus.txt: text, in the tokens of model/tokenizer.json", "--lr 1e-05"}},
      {{"plan", "--model", "model", "--data", "chat.jsonl", "--lora-rank", "4", "--assumed-costs"}, {"--lora-targets all"}},
      {{"eval", "model", "--data", "chat.jsonl"}, {"perplexity"}},
      {{"generate", "model", "--prompt", "The", "--max-tokens", "3"}, {"The"}}};
  for (const auto& [words, said] : rows)
    for (const bool gpu : {false, true}) {
      for (const auto* const run : {"runs", "cache/terrace/tokens"}) fs::remove_all(at(run));
      const auto outcome = succeeded(gpu ? with_gpu(words) : terrace(words));
      std::size_t at = 0;
      for (const auto& part : said) {
        const auto found = outcome.out.find(part, at);
        EXPECT_NE(std::string::npos, found) << part << "\n" << outcome.described;
        if (found != std::string::npos) at = found;
      }
      if (words[0] == "train" || words[0] == "plan") {
        EXPECT_EQ(gpu, outcome.out.find("--device cuda:0 (Imaginary H0)") != std::string::npos) << outcome.described;
        EXPECT_EQ(std::string::npos, outcome.out.find("--device cpu")) << "there is nothing to say";
      }
    }
}

// Existing adapters need no settings.
TEST_F(FirstCommands, AdaptersGoOnAsTheyAre) {
  const Words least{"train", "--model", "model", "--data", "chat.jsonl", "--steps", "2", "--assumed-costs"};
  ASSERT_EQ(
      0,
      terrace(least + Words{"--lora-rank", "4", "--lora-alpha", "7", "--lora-targets", "q,down", "--out-dir", "tuned"}).exit);
  ASSERT_EQ(0, terrace({"ckpt", "export", "tuned", "adapter"}).exit);
  const auto chosen = succeeded(terrace(least + Words{"--init-adapter", "adapter", "--out-dir", "chosen"}));
  EXPECT_THAT(chosen.out, AllOf(HasSubstr("--lora-rank 4 --lora-alpha 7 (those of --init-adapter)"),
                                HasSubstr("--lora-targets q,down (those of --init-adapter)")));
  const auto given =
      terrace(least + flags("--init-adapter adapter --lora-rank 4 --lora-alpha 7 --lora-targets q,down --out-dir given"));
  EXPECT_EQ(weights_of(given), weights_of(chosen)) << given.described;
}

// The chosen values have the same effect as flags with these values.
TEST_F(FirstCommands, AreTheSameAsTheirFlags) {
  const Words least{"train", "--model", "model", "--data", "chat.jsonl", "--lora-rank", "4", "--steps", "3", "--assumed-costs"};
  const auto chosen = terrace(least + Words{"--out-dir", "chosen"});
  const auto given = terrace(
      least + flags("--out-dir given --device cpu --dtype bf16 --seq-len 64 --lr 2e-4 --min-lr 2e-5 --lora-targets "
                    "q,k,v,o,gate,up,down --data-format jsonl --tokenizer model/tokenizer.json --vocab 280 --tiles off"));
  ASSERT_EQ(0, chosen.exit) << chosen.described;
  ASSERT_EQ(0, given.exit) << given.described;
  EXPECT_EQ(weights_of(given), weights_of(chosen));
  // A given value is not reported as chosen.
  const auto other = succeeded(terrace(least + Words{"--out-dir", "other", "--dtype", "fp32", "--seq-len", "60"}));
  EXPECT_THAT(other.out, AllOf(Not(HasSubstr("--dtype")), Not(HasSubstr("--seq-len")), HasSubstr("--lr 0.0002")));
  // A rate alone is enough, and a file's settings count as given.
  EXPECT_EQ(0, terrace(least + Words{"--out-dir", "slow", "--lr", "1e-6"}).exit);
  scratch_.write("mine.toml", "lr = 2e-4\nmin-lr = 2e-5\ndtype = \"bf16\"\nlora-targets = \"all\"\n");
  const auto of_file = terrace(least + Words{"--config", "mine.toml", "--out-dir", "mine"});
  EXPECT_EQ(weights_of(given), weights_of(of_file));
  EXPECT_THAT(of_file.out, Not(HasSubstr("--lr")));
}

TEST_F(FirstCommands, LayersAreCutIntoTilesWhereTheyDoNotFit) {
  const Words words = flags(
      "train --data ids.u16 --vocab 16384 --layers 2 --hidden 256 --heads 4 --seq-len 64 --steps 2 --assumed-costs "
      "--batch-size 1 --nvme-path disk --host-memory 16MiB");
  const auto whole = succeeded(terrace(words + Words{"--out-dir", "whole", "--device-memory", "48MiB"}));
  EXPECT_THAT(whole.out, Not(HasSubstr("in tiles")));
  const Words little{"--device-memory", "11MiB"};
  expect_refusal(terrace(words + little + Words{"--tiles", "off", "--out-dir", "off"}), 3, {"--device-memory"});
  const auto tiled = succeeded(terrace(words + little + Words{"--out-dir", "tiled"}));
  EXPECT_THAT(tiled.out, HasSubstr("in tiles (vocabulary"));
  const auto resumed = succeeded(terrace({"train", "--resume", "tiled", "--steps", "3"}));
  EXPECT_THAT(resumed.out, HasSubstr("in tiles (vocabulary"));
}

TEST_F(FirstCommands, AGpuThatIsNotUsedIsNamed) {
  auto started = launch({"train", "--model", "model", "--data", "ids.u16", "--steps", "1", "--assumed-costs", "--dp", "2"});
  started.environment["LD_LIBRARY_PATH"] = TERRACE_FAKE_CUDA_FOLDER;
  started.environment["TERRACE_MODULE_PATH"] = TERRACE_FAKE_CUDA_FOLDER;
  const auto one = succeeded(run(started));
  EXPECT_THAT(one.out, HasSubstr("--device cpu (2 ranks need a GPU each, and there is 1)"));
}

// On a machine with slow copies, a step of eight sequences would wait for the copies.
TEST_F(FirstCommands, ChooseTheirMicroBatchesOnce) {
  auto slow = MachineProfile();
  slow.memory_copy = 1e6;
  save_profile(slow, at("slow.json"));
  std::string lines;
  for (int i = 0; i < 4000; ++i) lines += fmt::format("line {} of a longer text\n", i);
  scratch_.write("long.txt", lines);
  const Words least{"train", "--model", "model", "--data", "long.txt", "--seq-len", "16", "--assumed-costs"},
      two{"--steps", "2"};
  const Words tight{"--device-memory", "1.5MiB", "--machine-profile", "slow.json"};
  const auto chosen = succeeded(terrace(least + tight + two + Words{"--out-dir", "chosen"}));
  std::smatch found;
  ASSERT_TRUE(std::regex_search(chosen.out, found,
                                std::regex("--batch-size ([0-9]+) --grad-accumulation ([0-9]+) \\([0-9]+ sequences a step, ")))
      << chosen.described;
  const Words given{"--batch-size", found[1], "--grad-accumulation", found[2]};
  EXPECT_GT(std::stoi(found[1]) * std::stoi(found[2]), 8);
  // The same values as flags, without a budget, give the same bits.
  EXPECT_EQ(weights_of(chosen), weights_of(terrace(least + given + two + Words{"--out-dir", "given"})));
  // A resumed run keeps its own values, although the machine's rates differ.
  const auto more =
      succeeded(terrace(least + Words{"--device-memory", "1.5MiB", "--steps", "4", "--resume", "auto", "--out-dir", "chosen"}));
  const auto whole = terrace({"train", "--resume", "given", "--steps", "4"});
  EXPECT_EQ(weights_of(whole), weights_of(more)) << whole.described;
  // All ranks use what the first one chooses.
  const auto ranks = succeeded(terrace(Words{"launch", "-n", "2", "--"} + least + tight + two + Words{"--out-dir", "ranks"}));
  EXPECT_THAT(ranks.out, HasSubstr("sequences a step, "));
}

}  // namespace
}  // namespace terrace::test
