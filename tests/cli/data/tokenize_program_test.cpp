// From text to a trained run that generates text: terrace train-tokenizer, tokenize, train, generate.
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <string>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/forbidden_call.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class TokenizeProgram : public Cli {
 protected:
  // Repeats the text so often that tokenizing takes a while.
  void repeat_text() const {
    std::string much;
    for (int i = 0; i < 400; ++i) much += scratch_.read("text.txt");
    scratch_.write("text.txt", much);
  }
  void wait_for_output(const std::string& out) const {
    while (!fs::exists(at(out + ".partial")) || fs::file_size(at(out + ".partial")) == 0) ::usleep(1000);
  }
  TokenizeProgram() {
    std::string text;
    for (int i = 0; i < 20000; ++i)
      text += i % 9 == 0 ? "\nthe chunk moves" : " between tiers, and word" + std::to_string(i % 500);
    scratch_.write("text.txt", text);
    succeeded(terrace({"train-tokenizer", "text.txt", "--vocab", "400", "--out", "tokenizer.json"}));
  }
  [[nodiscard]] Words tokenize(const std::string& out, const Words& more = {}) const {
    return Words{"tokenize", "text.txt", "--tokenizer", "tokenizer.json", "--out", out} + more;
  }
  void stop_in_parts() const {
    Child child(launch(tokenize("parts")));
    wait_for_output("parts");
    child.send(SIGTERM);
    EXPECT_EQ(75, child.wait().exit);
  }
};

TEST_F(TokenizeProgram, WritesWhatTrainReadsInEachFormat) {
  std::string weights;
  for (const std::string format : {"u16", "u32", "megatron"}) {
    ASSERT_EQ(0, terrace(tokenize(format, {"--format", format})).exit);
    const auto file = format == "megatron" ? "megatron.bin" : format;
    const auto run = succeeded(train(
        {"--data", file, "--data-format", format == "u32" ? "u32" : "u16", "--vocab", "400", "--out-dir", "run-" + format}));
    if (weights.empty()) weights = weights_of(run);
    EXPECT_EQ(weights, weights_of(run)) << format;
  }
  // In llm.c's format the separator comes first, so the tokens differ.
  ASSERT_EQ(0, terrace(tokenize("c", {"--format", "llm.c"})).exit);
  succeeded(train({"--data", "c", "--data-format", "llm.c", "--vocab", "400", "--out-dir", "run"}));
  const auto text =
      succeeded(terrace({"generate", "run", "--tokenizer", "tokenizer.json", "--prompt", "the chunk", "--max-tokens", "5"}));
  EXPECT_EQ("the chunk", text.out.substr(0, 9));
  expect_refusal(terrace({"generate", "run", "--prompt", "x"}), 2, {"--tokenizer"});
  expect_refusal(train({"--data", "u16", "--data-format", "llm.c", "--vocab", "400", "--out-dir", "none"}), 2,
                 {"header of llm.c"});
}

// A disk that does not sync names of files gives an error; a file system without locks gives a warning.
TEST_F(TokenizeProgram, TheNameOfTheFileIsSynced) {
  const auto where = [&](unsigned call, int error_number, const std::string& out) {
    auto launched = launch(tokenize(out, {"--format", "u16"}));
    launched.in_child = [=] { forbid_call(call, error_number); };
    return run(launched);
  };
  const auto broken = where(__NR_fsync, EIO, "broken");
  if (broken.exit == kNotPermitted) GTEST_SKIP() << "a seccomp filter is not permitted here";
  expect_refusal(broken, 1, {"the name of broken could not be written", "Input/output error (errno 5)", "repeat the command"});
  const auto unlocked = succeeded(where(__NR_flock, ENOLCK, "unlocked"));
  EXPECT_EQ(1U, unlocked.warnings("unlocked.partial cannot be locked")) << unlocked.described;
}

TEST_F(TokenizeProgram, GenerationFollowsItsSettingsAndStopsAtAToken) {
  ASSERT_EQ(0, terrace(tokenize("ids", {"--format", "u16"})).exit);
  ASSERT_EQ(0, train({"--data", "ids", "--data-format", "u16", "--vocab", "400", "--steps", "2"}).exit);
  const auto generate = [&](const Words& more) {
    const auto said =
        succeeded(terrace(Words{"generate", "run", "--tokenizer", "tokenizer.json", "--prompt", "the chunk", "--json",
                                "--temperature", "2", "--top-k", "0", "--max-tokens", "25", "--stop-token", "none"} +
                          more));
    return nlohmann::json::parse(said.out);
  };
  const auto all = generate({});
  EXPECT_EQ(25, all.at("tokens"));
  EXPECT_EQ("max tokens", all.at("end"));
  EXPECT_EQ(all, generate({}));
  for (const Words& other : {Words{"--seed", "2"}, {"--top-p", "0.2"}, {"--repetition-penalty", "1.9"}})
    EXPECT_NE(all.at("text"), generate(other).at("text")) << other.front();
  EXPECT_EQ(generate({"--top-p", "1e-9"}).at("text"), generate({"--temperature", "0"}).at("text"));
  expect_refusal(
      terrace({"generate", "run", "--tokenizer", "tokenizer.json", "--prompt", "a", "--stop-token", "no single token"}), 2,
      {"--stop-token", "not one"});
}

TEST_F(TokenizeProgram, GoesOnAfterASignalWithTheSameBytes) {
  repeat_text();
  ASSERT_EQ(0, terrace(tokenize("whole")).exit);
  stop_in_parts();
  EXPECT_TRUE(fs::exists(at("parts.progress")));
  expect_refusal(terrace(tokenize("parts", {"--separator", "none"})), 2, {"parts.progress"});
  ASSERT_EQ(0, terrace(tokenize("parts")).exit);
  EXPECT_EQ(scratch_.read("whole"), scratch_.read("parts"));
  EXPECT_FALSE(fs::exists(at("parts.progress")));
}

TEST_F(TokenizeProgram, AnInputThatChangedMeanwhileIsAnotherOne) {
  repeat_text();
  stop_in_parts();
  auto text = scratch_.read("text.txt");
  text.front() = text.front() == 'x' ? 'y' : 'x';  // the same number of bytes
  scratch_.write("text.txt", text);
  expect_refusal(terrace(tokenize("parts")), 2, {"parts.progress", "other input"});
}

TEST_F(TokenizeProgram, TwoProcessesDoNotWriteOneFile) {
  repeat_text();
  ASSERT_EQ(0, terrace(tokenize("whole")).exit);
  Child child(launch(tokenize("ids")));
  wait_for_output("ids");
  child.send(SIGSTOP);
  const auto second = terrace(tokenize("ids"));
  child.send(SIGCONT);
  expect_refusal(second, 1, {"ids.partial is being written by another process"});
  EXPECT_EQ(0, child.wait().exit);
  EXPECT_EQ(scratch_.read("whole"), scratch_.read("ids"));
}

TEST_F(TokenizeProgram, WhatIsReadIsNotWritten) {
  const auto text = scratch_.read("text.txt"), tokenizer = scratch_.read("tokenizer.json");
  fs::create_symlink("text.txt", at("link"));
  fs::create_symlink("text.txt", at("link.idx"));
  for (const auto* const out : {"text.txt", "./text.txt", "link", "tokenizer.json"})
    expect_refusal(terrace(tokenize(out)), 2, {"--out", out, "the same file"});
  expect_refusal(terrace(tokenize("link", {"--format", "megatron"})), 2, {"--out link.idx", "the same file"});
  expect_refusal(terrace({"train-tokenizer", "text.txt", "--vocab", "300", "--out", "text.txt"}), 2, {"the same file"});
  EXPECT_EQ(text, scratch_.read("text.txt"));
  EXPECT_EQ(tokenizer, scratch_.read("tokenizer.json"));
}

TEST_F(TokenizeProgram, WhatIsReadHasNoNameOfAFileThatIsWrittenMeanwhile) {
  const auto text = scratch_.read("text.txt"), tokenizer = scratch_.read("tokenizer.json");
  const auto expect_kept = [&](const std::string& name, const Words& words) {
    SCOPED_TRACE(name);
    scratch_.write(name, text);
    expect_refusal(terrace(words), 2, {"--out x", "reads " + name, "writes"});
    EXPECT_EQ(text, scratch_.read(name));
    fs::remove(at(name));
  };
  const auto reads = [&](const std::string& name, const std::string& format) {
    return Words{"tokenize", "text.txt", name, "--tokenizer", "tokenizer.json", "--out", "x", "--format", format};
  };
  for (const auto* const name : {"x.partial", "x.progress", "x.progress.tmp"}) expect_kept(name, reads(name, "u16"));
  for (const auto* const name : {"x.partial", "x.sizes.partial", "x.idx.tmp"}) expect_kept(name, reads(name, "megatron"));
  expect_kept("x.tmp", {"train-tokenizer", "x.tmp", "--vocab", "300", "--out", "x"});
  fs::rename(at("tokenizer.json"), at("x.partial"));
  expect_refusal(terrace({"tokenize", "text.txt", "--tokenizer", "x.partial", "--out", "x"}), 2, {"--out x", "x.partial"});
  EXPECT_EQ(tokenizer, scratch_.read("x.partial"));
}

TEST_F(TokenizeProgram, NothingIsWrittenThroughALink) {
  for (const std::string planted : {"x.partial", "x.sizes.partial"}) {
    SCOPED_TRACE(planted);
    scratch_.write("mine", "precious");
    const auto expect_refused = [&] {
      expect_refusal(terrace(tokenize("x", {"--format", "megatron"})), 2, {planted, "not a file that terrace left there"});
      EXPECT_EQ("precious", scratch_.read("mine"));
      fs::remove(at(planted));
    };
    fs::create_symlink("mine", at(planted));
    expect_refused();
    fs::create_hard_link(at("mine"), at(planted));
    expect_refused();
    fs::create_symlink("nothing", at(planted));
    expect_refused();
    EXPECT_FALSE(fs::exists(at("nothing")));
    ASSERT_EQ(0, ::mkfifo(at(planted).c_str(), 0600));
    expect_refused();
  }
  // Nor does it replace something that is not a regular file.
  ASSERT_EQ(0, ::mkfifo(at("pipe").c_str(), 0600));
  expect_refusal(terrace(tokenize("pipe")), 2, {"--out pipe", "not a regular file"});
  EXPECT_TRUE(fs::is_fifo(at("pipe")));
}

TEST_F(TokenizeProgram, WhereItsFileGoesIsCheckedFirst) {
  for (const Words& words : {tokenize("nowhere/x"), Words{"train-tokenizer", "text.txt", "--out", "nowhere/x"}}) {
    const auto said = terrace(words);
    expect_refusal(said, 2, {"--out nowhere/x", "does not exist"});
  }
  expect_refusal(terrace(tokenize(".")), 2, {"--out .", "is a folder"});
}

TEST_F(TokenizeProgram, SpecialTokensGetTheLowestIdsInTheirOrder) {
  succeeded(terrace(
      flags("train-tokenizer text.txt --vocab 300 --special <|b|> --special <|a|> --special <|c|> --out special.json")));
  std::vector<std::string> tokens;
  const auto file = nlohmann::json::parse(scratch_.read("special.json"));
  for (const auto& token : file.at("added_tokens")) {
    EXPECT_EQ(tokens.size(), token.at("id").get<std::size_t>());
    tokens.push_back(token.at("content").get<std::string>());
  }
  EXPECT_EQ((std::vector<std::string>{"<|b|>", "<|a|>", "<|c|>"}), tokens);
}

TEST_F(TokenizeProgram, RefusalsSayWhatToDo) {
  expect_refusal(terrace({"tokenize"}), 2, {"needs files"});
  expect_refusal(terrace({"tokenize", "text.txt", "--out", "x"}), 2, {"--tokenizer"});
  expect_refusal(terrace(tokenize("x", {"--separator", "<|none|>"})), 2, {"<|none|>", "--separator"});
  expect_refusal(terrace({"tokenize", "nothing", "--tokenizer", "tokenizer.json", "--out", "x"}), 2, {"nothing"});
  expect_refusal(terrace({"train-tokenizer", "text.txt"}), 2, {"--out"});
  EXPECT_FALSE(fs::exists(at("x")));
}

}  // namespace
}  // namespace terrace::test
