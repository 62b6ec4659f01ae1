// Settings override each other in the order defaults < file < --set < flags, and every mistake is an Error(ErrorKind::refused)
// that says how to go on.
#include <terrace/examples/terrace/cli/command_line.h>

#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/terrace/config/options.h>

#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::cli {
namespace {

using testing::HasSubstr;

CommandLine parse_words(const std::vector<std::string>& words) {
  std::vector<const char*> argv{"terrace"};
  for (const auto& word : words) argv.push_back(word.c_str());
  return parse(static_cast<int>(argv.size()), argv.data());
}

std::string usage_error(const std::vector<std::string>& words) {
  const auto error = test::thrown_by([&] { parse_words(words); });
  EXPECT_EQ(error.kind(), ErrorKind::refused) << testing::PrintToString(words);
  return error.what();
}

TEST(CommandLine, FlagsOverrideSetOverridesFileOverridesDefaults) {
  const ScratchFolder scratch;
  const auto file = scratch.write("run.toml", "[train]\nsteps = 1\nlr = 0.5\nbatch-size = 2\n").string();
  const auto line = parse_words({"plan", "--steps", "3", "--set", "train.steps=2", "--set", "lr=0.25", "--config", file});
  EXPECT_EQ(line.command, "plan");
  EXPECT_EQ(line.config.train.steps, 3);
  EXPECT_EQ(line.config.train.lr, 0.25);
  EXPECT_EQ(line.config.train.batch_size, 2);
  EXPECT_EQ(line.config.model.layers, RunConfig{}.model.layers);
}

TEST(CommandLine, TakesManyDataFilesAndRepeatedPaths) {
  const ScratchFolder scratch;
  const auto a = scratch.write("a", "x").string(), b = scratch.write("b", "y").string();
  const auto line = parse_words(
      {"train", "--data", a, b, "--nvme-path", "/n1", "--nvme-path", "/n2", "--untied", "--json", "--device-memory=16MiB"});
  EXPECT_EQ(line.config.data.files.size(), 2U);
  EXPECT_EQ(line.config.memory.nvme_path.size(), 2U);
  EXPECT_FALSE(line.config.model.tied);
  EXPECT_TRUE(line.config.run.json);
  EXPECT_EQ(line.config.memory.device_memory, "16MiB");
}

TEST(CommandLine, AFlagThatIsGivenTwiceHasItsLastValue) {
  const ScratchFolder scratch;
  const auto corpus = scratch.write("a", "x").string();
  const auto line = parse_words({"train", "--data", corpus, "--steps", "3", "--json", "--lr", "1", "--out-dir", "one",
                                 "--steps", "5", "--nvme-path", "/n1", "--json", "--nvme-path", "/n2", "--out-dir", "two"});
  EXPECT_EQ(line.config.train.steps, 5);
  EXPECT_EQ(line.config.run.out_dir, "two");
  EXPECT_TRUE(line.config.run.json);
  EXPECT_EQ(line.config.memory.nvme_path.size(), 2U);  // a flag that takes several values still has them all
  EXPECT_EQ(parse_words({"plan", "--steps", "0", "--steps", "2"}).config.train.steps, 2);
  EXPECT_EQ(parse_words({"plan", "--trace", "a", "--trace", "b"}).plan.trace, "b");
  scratch.write(kConfigFile, to_toml(RunConfig()));
  const auto generate =
      parse_words({"generate", scratch.path().string(), "--prompt", "a", "--top-k", "1", "--prompt", "b", "--top-k", "2"});
  EXPECT_EQ(generate.generate.prompt, "b");
  EXPECT_EQ(generate.generate.sampling.top_k, 2);
}

TEST(CommandLine, EveryOptionIsAFlagOfTrain) {
  const auto help = parse_words({"train", "--help"}).answer;
  for (const auto& o : options()) EXPECT_THAT(help, HasSubstr("--" + std::string(o.key)));
  EXPECT_THAT(help, HasSubstr("Usage: terrace train"));
  EXPECT_THAT(help, HasSubstr("transformer blocks (default 6)"));
  EXPECT_THAT(help, HasSubstr("--config"));
  EXPECT_THAT(help, HasSubstr("--set"));
}

TEST(CommandLine, HelpAndVersionAreAnswers) {
  for (const auto* const command : {"train", "plan", "generate", "chat", "doctor", "report", "config", "ckpt"}) {
    EXPECT_THAT(parse_words({"--help"}).answer, HasSubstr(command));
    EXPECT_THAT(parse_words({command, "--help"}).answer, HasSubstr(command));
  }
  EXPECT_THAT(parse_words({"--version"}).answer, HasSubstr("terrace "));
}

TEST(CommandLine, MistakesAreUsageErrorsWithAHint) {
  const ScratchFolder scratch;
  const auto corpus = scratch.write("corpus", "text").string();
  const auto folder = scratch.path().string();
  struct Case {
    std::vector<std::string> words;
    const char* part;
  };
  const std::vector<Case> cases{
      {{}, "ckpt, launch, train-tokenizer, tokenize, bench"},
      {{"trian"}, "did you mean train?"},
      {{"bnech"}, "did you mean bench?"},
      {{"--steps", "5"}, "the first argument must be a command"},
      {{"train"}, "--data FILE"},
      {{"train", "--data"}, "--data"},
      {{"train", "--data", "/no/such/file"}, "does not exist"},
      {{"train", "--data", folder}, "is a directory"},
      {{"train", "--data", corpus, "--hiden", "64"}, "unknown flag --hiden; did you mean --hidden?"},
      {{"train", "--data", corpus, "--hiden=64"}, "unknown flag --hiden; did you mean --hidden?"},
      {{"train", "--data", corpus, "-steps", "5"}, "did you mean --steps?"},
      {{"plan", "--steps"}, "--steps needs a value"},
      {{"plan", "--steps", "0"}, "--steps: \"0\" is not accepted"},
      {{"plan", "--steps", "-3"}, "--steps: \"-3\" is not accepted"},
      {{"plan", "--steps", "ten"}, "--steps: \"ten\" is not accepted"},
      {{"plan", "--lr", "0"}, "greater than 0"},
      {{"plan", "--device-memory", "0"}, "greater than zero"},
      {{"plan", "--device-memory", "-1GiB"}, "--device-memory"},
      {{"plan", "--model", "bert"}, "one of gemma, gemma2"},
      {{"plan", "--heads", "7"}, "does not divide"},
      {{"plan", "--config", "/no/such.toml"}, "/no/such.toml"},
      {{"plan", "--set", "nonsense"}, "--set nonsense"},
      {{"plan", "stray"}, "unexpected argument \"stray\""},
      {{"report"}, "report needs the directory of a run"},
      {{"report", "/no/such/dir"}, "is not a directory"},
      {{"report", folder, "/no/such/dir"}, "is not a directory"},
      {{"top"}, "needs a run directory"},
      {{"report", folder, "--steps", "5"}, "does not take --steps"},
      {{"generate", folder}, "has no config.toml"},
      {{"generate", folder, "--top-k", "-1"}, "--top-k"},
      {{"generate", folder, "--temperature", "-1"}, "--temperature"},
      {{"generate", folder, "--max-tokens", "0"}, "--max-tokens"},
      {{"chat"}, "chat needs the directory of a run, or of a model"},
      {{"chat", folder}, "has no config.toml"},
      {{"generate", folder, "--top-p", "0"}, "--top-p: 0 is not accepted: a number above 0 and at most 1"},
      {{"generate", folder, "--top-p", "1.5"}, "--top-p"},
      {{"generate", folder, "--repetition-penalty", "0"}, "--repetition-penalty"},
      {{"generate", folder, "--stop-token", ""}, "--stop-token"},
      {{"generate", folder, "--max-tokens", "x"}, "--max-tokens: \"x\" is not accepted: an integer"},
      {{"generate", folder, "--temperature", "x"}, "--temperature: \"x\" is not accepted: a number"},
      {{"generate", folder, "--temperature", "0,7"}, "--temperature: \"0,7\" is not accepted: a number, with a decimal point"},
      {{"chat", folder, "--top-p", "0x1p-1"}, "--top-p: \"0x1p-1\" is not accepted: a number"},
      {{"plan", "--search-seconds", "1,5"}, "a number, with a decimal point"},
      {{"plan", "--nodes", "x", "--cluster-profile", "c"}, "--nodes: \"x\" is not accepted: an integer"},
      {{"ckpt"}, "inspect, verify, copy, export or rm"},
      {{"ckpt", "inspekt", folder}, "did you mean inspect?"},
      {{"ckpt", "rm"}, "needs a run directory"},
      {{"ckpt", "verify", "/a", "/b"}, "unexpected argument \"/b\""}};
  for (const auto& [words, part] : cases) {
    const auto message = usage_error(words);
    EXPECT_THAT(message, HasSubstr(part)) << testing::PrintToString(words);
    EXPECT_THAT(message, HasSubstr("\n  ")) << "no hint: " << testing::PrintToString(words);
  }
}

TEST(CommandLine, GenerateTakesTheRunsOwnConfiguration) {
  const ScratchFolder scratch;
  RunConfig trained;
  trained.model.hidden = 64, trained.run.json = true, trained.train.seed = 77, trained.memory.device_memory = "1GiB";
  scratch.write(kConfigFile, to_toml(trained));
  const auto line = parse_words(
      {"generate", scratch.path().string(), "--prompt", "In the", "--top-k", "0", "--device-memory", "2GiB", "--seed", "5"});
  EXPECT_EQ(line.config.model.hidden, 64);
  EXPECT_EQ(line.config.train.seed, 77U);
  EXPECT_FALSE(line.config.run.json);
  EXPECT_EQ(line.config.memory.device_memory, "2GiB");
  EXPECT_EQ(line.generate.prompt, "In the");
  EXPECT_EQ(line.generate.sampling.top_k, 0);
  EXPECT_EQ(line.generate.sampling.seed, 5U);
}

TEST(CommandLine, CkptAndDoctorAndPlanExtras) {
  const auto ckpt = parse_words({"ckpt", "verify", "/a"});
  EXPECT_THAT(ckpt.positional, testing::ElementsAre("verify", "/a"));
  EXPECT_TRUE(parse_words({"doctor", "--measure", "--nvme-path", "/n"}).measure);
  const auto plan = parse_words({"plan", "--program", "--trace", "t.json"});
  EXPECT_TRUE(plan.plan.program);
  EXPECT_EQ(plan.plan.trace, "t.json");
}

TEST(CommandLine, ErrorsBecomeExitCodes) {
  std::FILE* const sink = std::tmpfile();
  ASSERT_NE(sink, nullptr);
  EXPECT_EQ(report_error(Error("x"), sink), 1);
  EXPECT_EQ(report_error(Error("x", ErrorKind::refused), sink), 2);
  EXPECT_EQ(report_error(Error("x", ErrorKind::does_not_fit), sink), 3);
  EXPECT_EQ(report_error(Error("x", ErrorKind::missing), sink), 4);
  EXPECT_EQ(report_error(Error("x", ErrorKind::corrupt), sink), 5);
  EXPECT_EQ(report_error(Error("x", ErrorKind::interrupted), sink), 75);
  EXPECT_EQ(report_error(std::runtime_error("y"), sink), 1);
  std::rewind(sink);
  char text[32] = "";
  ASSERT_NE(std::fgets(text, sizeof text, sink), nullptr);
  EXPECT_STREQ(text, "error: x\n");
  static_cast<void>(std::fclose(sink));
}

}  // namespace
}  // namespace terrace::cli
