// Invalid input exits with 2 and a message that names it and says how to correct it, before any folder is touched.
#include <sys/stat.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

struct Case {
  Words words;
  std::vector<std::string> said;
};

class BadInput : public Cli {
 protected:
  void expect_refused(const std::vector<Case>& cases) const {
    for (const auto& [words, said] : cases) {
      expect_refusal(train(words), 2, said);
      EXPECT_FALSE(std::filesystem::exists(at("run"))) << testing::PrintToString(words);
    }
  }
};

TEST_F(BadInput, CorpusThatIsNone) {
  scratch_.write("empty.txt", "");
  scratch_.write("short.txt", "hello");
  std::filesystem::create_directory(at("folder"));
  ASSERT_EQ(0, ::mkfifo(at("pipe").c_str(), 0600));
  expect_refused({
      {{"--data", "nowhere.txt"}, {"nowhere.txt", "does not exist"}},
      {{"--data", "corpus.txt", "nowhere.txt"}, {"nowhere.txt"}},
      {{"--data", "empty.txt"}, {"the corpus is empty", "--data"}},
      {{"--data", "short.txt"}, {"5 tokens", "130 are needed", "--seq-len"}},
      {{"--data", "folder"}, {"folder", "is a directory"}},
      {{"--data", "/dev/null"}, {"/dev/null", "not a regular file"}},
      {{"--data", "pipe"}, {"pipe", "not a regular file"}},
      {{"--seq-len", "16777216"}, {"tokens, but 33554434 are needed"}},
  });
  expect_refusal(terrace({"train"}), 2, {"--data", "terrace train --help"});
}

TEST_F(BadInput, SizesThatCannotBe) {
  expect_refused({
      {{"--heads", "5"}, {"--heads 5 does not divide --hidden 64"}},
      {{"--kv-heads", "3"}, {"--kv-heads 3 does not divide --heads 4"}},
      {{"--heads", "64"}, {"which is odd", "even head width"}},
      {{"--layers", "0"}, {"--layers", "\"0\"", "an integer of at least 1"}},
      {{"--hidden", "-64"}, {"--hidden", "\"-64\"", "an integer of at least 1"}},
      {{"--steps", "0"}, {"--steps", "\"0\""}},
      {{"--batch-size", "0"}, {"--batch-size", "\"0\""}},
      {{"--batch-size", "1e3"}, {"--batch-size", "\"1e3\""}},
      {{"--seq-len", "0"}, {"--seq-len"}},
      {{"--vocab", "100"}, {"--vocab", "at least 256"}},
      {{"--lr", "nan"}, {"--lr", "greater than 0"}},
      {{"--lr", "-1"}, {"--lr"}},
      {{"--lr-schedule", "linear", "--min-lr", "1"}, {"--min-lr", "above --lr"}},
      {{"--device-memory", "0"}, {"--device-memory", "greater than zero"}},
      {{"--host-memory", "12XB"}, {"--host-memory", "12XB", "512MiB"}},
      {{"--prefetch-depth", "-1"}, {"--prefetch-depth", "auto"}},
      {{"--device", "gpu"}, {"--device", "cpu or cuda:N"}},
      {{"--group", "2"}, {"--group 2", "--order vertical"}},
  });
}

TEST_F(BadInput, EveryMistakeIsToldAtOnce) {
  const auto outcome = train(flags(
      "--tp 7 --cp 5 --optimizer muon --sync-interval 3 --vocab-tiles 40 --lr-schedule linear --min-lr 1 --save nowhere/w"));
  expect_refusal(
      outcome, 2,
      {"error: --tp 7: it must divide 4 heads", "error: --cp 5: it must divide 64 positions\n  nearest legal: 1\n",
       "error: --tp 7 does not work with an optimizer that needs whole matrices, because each rank has blocks of the "
       "matrices\n  give --optimizer adamw",
       "error: --cp 5 does not work with local SGD", "error: --vocab-tiles 40", "error: --min-lr 1 is above",
       "error: --sync-interval 3 does not divide --steps 4", "error: --save nowhere/w"});
  EXPECT_FALSE(std::filesystem::exists(at("run")));
}

TEST_F(BadInput, NumbersThatOverflow) {
  const auto in_a_pipeline = [](const char* drain_interval) -> Words {
    return {"--pp",        "2", "--untied", "--schedule", "pipedream-2bw", "--grad-accumulation", "2", "--drain-interval",
            drain_interval};
  };
  expect_refused({
      {{"--batch-size", "99999999999999999999"}, {"--batch-size", "too large"}},
      {{"--batch-size", "999999999999999"}, {"--batch-size 999999999999999", "tokens in a micro-batch"}},
      {{"--grad-accumulation", "4294967296"}, {"--grad-accumulation 4294967296", "blocks in a step"}},
      {{"--layers", "999999999999999"}, {"--layers 999999999999999"}},
      {in_a_pipeline("4294967298"), {"--drain-interval", "4294967298", "at most 65536"}},
      {in_a_pipeline("2147483648"), {"--drain-interval", "2147483648", "at most 65536"}},
      {in_a_pipeline("20000"), {"times --drain-interval 20000", "blocks between two drains"}},
      {{"--hidden", "999999999999999", "--heads", "1"}, {"hidden"}},
      {{"--lr", "1e300"}, {"--lr", "too large"}},
      {{"--device-memory", "99999999999999TiB"}, {"--device-memory"}},
      {{"--seed", "-1"}, {"--seed"}},
  });
}

TEST_F(BadInput, UnknownNamesComeWithTheNearestOne) {
  expect_refused({
      {{"--bach-size", "2"}, {"unknown flag --bach-size", "did you mean --batch-size?"}},
      {{"-steps", "2"}, {"did you mean --steps?"}},
      {{"stray"}, {"unexpected argument \"stray\""}},
      {{"--set", "train.stepz=2"}, {"unknown key \"stepz\"", "did you mean steps?"}},
      {{"--set", "trian.steps=2"}, {"[trian]", "did you mean train?"}},
      {{"--set", "model.steps=2"}, {"write train.steps"}},
      {{"--model", "lama"}, {"did you mean llama?"}},
  });
  expect_refusal(terrace({"trian"}), 2, {"unknown command \"trian\"", "did you mean train?"});
  expect_refusal(terrace({}), 2, {"the first argument must be a command"});
}

TEST_F(BadInput, AWarmUpThatIsLongerThanTheRunIsAWarning) {
  for (const auto& [schedule, says] :
       {std::pair{"cosine", "the warm-up is shortened to 4 steps"}, {"constant", "never reaches --lr"}}) {
    const Words words{"--lr-schedule", schedule, "--warmup", "100", "--out-dir", schedule};
    for (const auto& outcome : {terrace(tiny("plan", words)), train(words)}) {
      EXPECT_EQ(0, outcome.exit) << outcome.described;
      EXPECT_EQ(1U, outcome.warnings("--warmup 100 is longer than --steps 4")) << outcome.described;
      EXPECT_THAT(outcome.err, HasSubstr(says));
    }
  }
  EXPECT_EQ(3e-4, steps("cosine").back().rate);
  EXPECT_EQ(3e-4 * 0.04, steps("constant").back().rate);
  EXPECT_EQ(0U, train({"--warmup", "4", "--out-dir", "short"}).warnings("--warmup"));
}

TEST_F(BadInput, ValuesThatAreMissing) {
  expect_refused({
      {{"--steps"}, {"--steps"}},
      {{"--set", "steps"}, {"--set steps", "a key, = and a value"}},
      {{"--set", "steps="}, {"--set steps", "an integer"}},
      {{"--set", "data=[\"corpus.txt\""}, {"--set data"}},
  });
}

TEST_F(BadInput, ConfigurationFiles) {
  scratch_.write("syntax.toml", "layers = 2\nsteps = \n");
  scratch_.write("key.toml", "[train]\nstepz = 3\n");
  scratch_.write("section.toml", "[trian]\nsteps = 3\n");
  scratch_.write("type.toml", "steps = \"3\"\n");
  const auto with = [&](const std::string& file) { return terrace({"train", "--data", "corpus.txt", "--config", file}); };
  expect_refusal(with("syntax.toml"), 2, {"syntax.toml, line 2"});
  expect_refusal(with("key.toml"), 2, {"key.toml, line 2", "unknown key \"stepz\"", "did you mean steps?"});
  expect_refusal(with("section.toml"), 2, {"section.toml, line 1", "did you mean train?"});
  expect_refusal(with("type.toml"), 2, {"type.toml, line 1", "\"3\"", "leave out the quotes", "an integer"});
  expect_refusal(with("nowhere.toml"), 2, {"nowhere.toml", "No such file"});
  expect_refusal(with("."), 2, {"not a regular file but a directory"});
  EXPECT_FALSE(std::filesystem::exists(at("runs")));
}

TEST_F(BadInput, OddButLegalInputTrains) {
  std::string bytes(3000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 151 % 256);
  scratch_.write("binary.dat", bytes);
  std::filesystem::create_symlink("corpus.txt", at("link.txt"));
  for (const Words& words :
       {Words{"--data", "binary.dat"}, Words{"--data", "link.txt", "binary.dat"}, Words{"--seq-len", "1"},
        Words{"--data-format", "bytes", "--vocab", "257", "--ffn", "1"}, Words{"--steps", "1", "--warmup", "1000000"},
        Words{"--lr-schedule", "cosine", "--warmup", "10"}}) {
    std::filesystem::remove_all(at("run"));
    weights_of(train(words));
  }
}

TEST_F(BadInput, NamesThatConfigTomlCouldNotHoldAreRefused) {
  std::filesystem::copy(at("corpus.txt"), at("t\xE9xte"));
  expect_refused({{{"--data", "t\xE9xte"}, {"--data", "not UTF-8", "link to it"}}});
  expect_refusal(train({"--out-dir", "l\xE4ufe"}), 2, {"--out-dir", "not UTF-8"});
  EXPECT_FALSE(std::filesystem::exists(at("l\xE4ufe")));
  expect_refusal(terrace({"config", "--json", "--out-dir", "l\xE4ufe"}), 2, {"--out-dir", "not UTF-8"});
  std::filesystem::create_symlink("t\xE9xte", at("texte"));
  EXPECT_EQ(0, train({"--data", "texte"}).exit);
}

TEST_F(BadInput, WhatWouldBeIgnoredIsRefused) {
  expect_refused({
      {{"--schedule", "gpipe"}, {"--schedule gpipe", "--pp"}},
      {{"--cp-mode", "ring"}, {"--cp-mode ring", "--cp"}},
      {{"--cp", "2", "--cp-ring", "4"}, {"--cp-ring 4", "--cp-mode both"}},
      {{"--nvme-limit", "1GiB"}, {"--nvme-limit 1GiB", "--nvme-path"}},
      {{"--lora-targets", "all"}, {"--lora-targets all", "--lora-rank"}},
      {{"--lora-alpha", "32"}, {"--lora-alpha 32", "--lora-rank"}},
      {{"--loss-scale", "3"}, {"--loss-scale \"3\"", "power of two"}},
  });
  expect_refusal(terrace(tiny("plan", {"--loss-scale", "abc"})), 2, {"--loss-scale \"abc\""});
  expect_refusal(terrace(tiny("plan", {"--search", "-3"})), 2, {"--search", "at least one plan must be shown"});
}

TEST_F(BadInput, DivergenceIsNamedAndNotCommitted) {
  const auto outcome = train({"--lr", "1e14", "--ckpt-interval", "1"});
  expect_refusal(outcome, 1, {"training diverged at step", "lower --lr or --grad-clip,"});
  EXPECT_EQ(std::string::npos, outcome.err.find("-nan")) << outcome.described;
  expect_refusal(train({"--lr", "1e14", "--grad-clip", "0", "--out-dir", "unclipped"}), 1, {"lower --lr, give --grad-clip 1,"});
  // Anything committed before is intact.
  if (outcome.err.find("the last commit is intact") != std::string::npos)
    EXPECT_EQ(0, terrace({"ckpt", "verify", "run"}).exit);
  else
    EXPECT_THAT(outcome.err, HasSubstr("nothing was committed"));
}

// The last update is not followed by a step whose loss would show the damage.
TEST_F(BadInput, WeightsThatTheLastUpdateRuinedAreNotCommitted) {
  const Words one{"--lr", "1e14", "--warmup", "0", "--steps", "1"};
  expect_refusal(train(one), 1,
                 {"training diverged: the held-out loss after step 1 is nan", "nothing was committed", "lower --lr"});
  const auto skipping = one + Words{"--on-non-finite", "skip", "--out-dir", "skipping"};
  const auto ended = succeeded(train(skipping));
  EXPECT_THAT(ended.out, HasSubstr("held-out loss nan"));
  const auto again = succeeded(train(skipping + Words{"--resume", "auto"}));
  EXPECT_THAT(again.out, HasSubstr("held-out loss nan after step 1"));
}

}  // namespace
}  // namespace terrace::test
