// Data with invalid token ids is refused before anything happens; if a file changes later, the run keeps its steps.
#include <cstdint>
#include <fstream>
#include <tuple>
#include <utility>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<std::uint16_t>;

class TokenData : public Cli {
 protected:
  [[nodiscard]] static Tokens good(std::size_t count) {
    Tokens tokens(count);
    for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::uint16_t>(i * 7919 % 300);
    return tokens;
  }
  void write(const std::string& name, const Tokens& tokens) const {
    scratch_.write(name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof tokens[0]});
  }
  // Overwrites from this token on, without changing the length.
  void overwrite(const std::string& name, std::size_t first, const Tokens& tokens) const {
    std::fstream file(at(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(first * sizeof(std::uint16_t)));
    file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * sizeof tokens[0]));
  }
  void spoil(const std::string& name, std::size_t first, std::size_t count) const {
    overwrite(name, first, Tokens(count, 60000));
  }
  [[nodiscard]] Words with(const Words& more) const {
    return Words{"--data", "t.u16", "--data-format", "u16", "--vocab", "300"} + more;
  }
};

TEST_F(TokenData, AForeignTokenIsRefusedBeforeAnythingHappens) {
  constexpr std::size_t kTokens = 10000;
  write("t.u16", good(kTokens));
  const auto whole = succeeded(train(with({"--out-dir", "whole"})));
  ASSERT_EQ(0, train(with({"--steps", "2", "--out-dir", "cut"})).exit);
  const auto before = scratch_.read("cut/metrics.jsonl");
  const std::vector<std::string> says{"t.u16, token 9990: 60000 is not below the vocabulary of 300", "--vocab",
                                      "--data-format"};
  spoil("t.u16", 9990, 1);  // in the held-out part, which is read last
  for (const auto& ranks : {Words{}, Words{"--dp", "2"}, Words{"--pp", "2"}}) {
    expect_refusal(train(with(Words{"--out-dir", "none"} + ranks)), 2, says);
    EXPECT_FALSE(fs::exists(at("none")));
  }
  // The same for a file of a resumed run.
  expect_refusal(train(with({"--out-dir", "cut", "--resume", "auto"})), 2, says);
  EXPECT_EQ(before, scratch_.read("cut/metrics.jsonl"));
  write("t.u16", good(kTokens));
  EXPECT_EQ(weights_of(whole), weights_of(train(with({"--out-dir", "cut", "--resume", "auto"}))));
  // With a larger vocabulary, every number of two bytes is a valid token.
  spoil("t.u16", 9990, 1);
  EXPECT_EQ(0, train(with({"--vocab", "65536", "--out-dir", "large", "--steps", "1"})).exit);
}

// The same number of bytes, all valid tokens: a resumed run notices changed bytes, but accepts another time or path of the
// file.
TEST_F(TokenData, ARunGoesOnWithTheSameBytesOnly) {
  const auto tokens = good(10000);
  std::string text(30'000, ' ');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i * 7919 % 26);
  const auto bytes_of = [](const Tokens& of) {
    return std::string(reinterpret_cast<const char*>(of.data()), of.size() * sizeof of[0]);
  };
  for (const auto& [file, content, more] :
       {std::tuple{std::string("t.u16"), bytes_of(tokens), with({})},
        {"text", text, Words{"--data", "text"}},
        {"all.u16", bytes_of(tokens), Words{"--data", "all.u16", "--data-format", "u16", "--vocab", "65536"}}}) {
    SCOPED_TRACE(file);
    const auto run = "run-" + file;
    const auto go_on = [&](const std::string& steps, const Words& extra = {}) {
      return train(more + Words{"--out-dir", run, "--resume", "auto", "--steps", steps} + extra);
    };
    scratch_.write(file, content);
    ASSERT_EQ(0, train(more + Words{"--out-dir", run, "--steps", "1"}).exit);
    auto other = content;
    other[content.size() / 2] = other[content.size() / 2 + 2];
    ASSERT_NE(content, other);
    scratch_.write(file, other);
    const auto lines = scratch_.read(run + "/metrics.jsonl");
    const std::vector<std::string> says{"the data of the run in run-", "has changed since it began: " + file, "--force"};
    expect_refusal(go_on("2"), 2, says);
    scratch_.write("moved", other);
    fs::rename(at("moved"), at(file));
    expect_refusal(go_on("2"), 2, says);
    EXPECT_EQ(lines, scratch_.read(run + "/metrics.jsonl"));
    scratch_.write("moved", content);
    fs::rename(at("moved"), at(file));
    const auto same = succeeded(go_on("2"));
    EXPECT_EQ(0U, same.warnings("looks written to"));
    fs::rename(at(file), at("moved"));
    fs::rename(at("moved"), at(file));
    EXPECT_EQ(0, go_on("3").exit) << "a name and a time of its own";
    scratch_.write(file, other);
    succeeded(go_on("4", {"--force"}));
    EXPECT_EQ(0, go_on("5").exit) << "the new data is that of the run now";
  }
}

// A run of an older version only recorded sizes.
TEST_F(TokenData, ARunOfAnOlderVersionGoesOn) {
  write("t.u16", good(10000));
  ASSERT_EQ(0, train(with({"--out-dir", "run", "--steps", "1", "--eval-batches", "0"})).exit);
  auto record = json_in("run/run.json");
  EXPECT_EQ(false, record.at("holds_out"));
  for (const auto* const key : {"data_content", "holds_out"}) record.erase(key);
  for (const auto* const name : {"run/run.json", "run/run.copy.json"}) scratch_.write(name, record.dump());
  succeeded(train(with({"--out-dir", "run", "--resume", "auto", "--steps", "2"})));
  EXPECT_TRUE(json_in("run/run.json").at("holds_out").get<bool>()) << "as that version did";
}

// Without evaluations, all data is used for training, and a resumed run keeps that.
TEST_F(TokenData, NothingIsHeldOutWithoutEvaluations) {
  write("t.u16", good(65));  // one sequence
  expect_refusal(train(with({"--out-dir", "none"})), 2, {"65 tokens, but 130 are needed"});
  succeeded(train(with({"--out-dir", "run", "--eval-batches", "0", "--steps", "2"})));
  expect_refusal(train(with({"--out-dir", "run", "--resume", "auto", "--steps", "3"})), 2,
                 {"began with --eval-batches 0", "nothing to evaluate on", "continue with --eval-batches 0"});
  EXPECT_EQ(0, train(with({"--out-dir", "run", "--resume", "auto", "--steps", "3", "--eval-batches", "0"})).exit);
  write("t.u16", good(10000));
  ASSERT_EQ(0, train(with({"--out-dir", "evaluated", "--steps", "2"})).exit);
  const auto whole = train(with({"--out-dir", "whole", "--steps", "4"}));
  const auto rest = train(with({"--out-dir", "evaluated", "--resume", "auto", "--steps", "4", "--eval-batches", "0"}));
  EXPECT_EQ(weights_of(whole), weights_of(rest)) << "the held-out part stays held out";
}

// A vocabulary smaller than 256.
TEST_F(TokenData, ASmallVocabularyIsTrainedOn) {
  Tokens few = good(10000);
  for (auto& token : few) token = static_cast<std::uint16_t>(token % 60);
  write("t.u16", few);
  succeeded(train(with({"--vocab", "60", "--out-dir", "small"})));
  ASSERT_EQ(0, train(with({"--vocab", "60", "--out-dir", "tp", "--tp", "2"})).exit);
  EXPECT_NEAR(steps("small").front().loss, steps("tp").front().loss, 1e-5);
  expect_refusal(train(with({"--vocab", "59", "--out-dir", "none"})), 2, {"59 is not below the vocabulary of 59"});
  expect_refusal(train({"--vocab", "60", "--out-dir", "none"}), 2, {"--vocab 60 with --data-format bytes", "at least 256"});
}

// The file changes while the run is working: after its first line, when the remaining steps are many more than the lines that a
// pipe holds.
class ChangedData : public TokenData {
 protected:
  static constexpr std::size_t kTokens = std::size_t{8} << 20, kWindowTokens = std::size_t{1} << 19;  // sixteen windows
  static constexpr int kSteps = 400;

  ChangedData() { write("t.u16", good(kTokens)); }
  [[nodiscard]] Words words(const std::string& run, const Words& more = {}) const {
    return with(Words{"--layers", "1", "--hidden", "16", "--heads", "2", "--seq-len", "16", "--batch-size", "1", "--steps",
                      std::to_string(kSteps), "--out-dir", run, "--host-memory", "64MiB", "--device-memory", "64MiB"} +
                more);
  }
  template <class Change>
  [[nodiscard]] Outcome changed(const std::string& run, const Words& more, const Change& change, std::size_t lines = 4) const {
    Child child(launch(tiny("train", words(run, more))));
    child.read_lines(lines);
    change();
    return child.wait();
  }
};

// After some steps, all training data is in the four windows in memory; the evaluation reads a fifth one.
class ChangedHeldOut : public ChangedData {
 protected:
  static constexpr std::size_t kFew = kWindowTokens * 42 / 10;
  static constexpr int kMoreSteps = 600;
  static constexpr std::size_t kLines = 80;
  ChangedHeldOut() { write("t.u16", good(kFew)); }
  [[nodiscard]] static Words few(const Words& more = {}) {
    return Words{"--eval-batches", "400", "--steps", std::to_string(kMoreSteps)} + more;
  }
};

TEST_F(ChangedHeldOut, CostsNoStep) {
  succeeded(train(words("whole", few())));
  const Words two_ranks{"--dp", "2"};
  ASSERT_EQ(0, train(words("whole-two", few(two_ranks))).exit);
  for (const auto& [run, undisturbed, more] :
       {std::tuple{"one", "whole/result.json", Words{}}, {"two", "whole-two/result.json", two_ranks}}) {
    const auto ended = changed(
        run, few(more), [&] { spoil("t.u16", kFew - kFew / 100, kFew / 100); }, kLines);
    expect_refusal(ended, 1,
                   {"t.u16 has changed while it was in use: it was written to", "the state after step 600 is committed"});
    EXPECT_EQ(static_cast<std::size_t>(kMoreSteps), steps(run).size());
    EXPECT_EQ(0, terrace({"ckpt", "verify", run}).exit);
    EXPECT_FALSE(fs::exists(at(run) / "result.json"));
    expect_refusal(train(words(run, few(more + Words{"--resume", "auto"}))), 2, {"is not below the vocabulary of 300"});
    write("t.u16", good(kFew));
    const auto rest = succeeded(train(words(run, few(more + Words{"--resume", "auto"}))));
    EXPECT_EQ(json_in(undisturbed).at("weights_xxh64").get<std::string>(), weights_of(rest));
    EXPECT_EQ(json_in(undisturbed).at("eval_loss"), json_in(std::string(run) + "/result.json").at("eval_loss"));
  }
}

// With --durability none, only the weights are kept, in the file of --save.
TEST_F(ChangedHeldOut, SavesTheWeightsOfARunThatKeepsNothingElse) {
  ASSERT_EQ(0, train(words("whole", few({"--save", "whole.safetensors"}))).exit);
  const auto ended = changed(
      "one", few({"--durability", "none", "--save", "one.safetensors"}), [&] { spoil("t.u16", kFew - kFew / 100, kFew / 100); },
      kLines);
  expect_refusal(ended, 1, {"t.u16 has changed", "the weights are saved; with --durability none nothing else is kept"});
  EXPECT_EQ(scratch_.read("whole.safetensors"), scratch_.read("one.safetensors"));
}

TEST_F(ChangedData, DuringTheStepsCostsNoneOfThem) {
  for (const auto& [run, more] : {std::pair{"one", Words{}}, {"data", Words{"--dp", "2"}}, {"pipeline", Words{"--pp", "2"}}}) {
    const auto name = std::string(run);
    const auto whole = succeeded(train(words("whole" + name, more)));
    const auto ended = changed(run, more, [&] { fs::resize_file(at("t.u16"), 1000); });
    expect_refusal(
        ended, 1,
        {"t.u16 became shorter while it was in use", "is committed; restore the file, then continue with --resume auto"});
    const auto done = steps(run).size();
    EXPECT_LT(done, static_cast<std::size_t>(kSteps));
    EXPECT_THAT(ended.err, HasSubstr("the state after step " + std::to_string(done) + " is committed"));
    write("t.u16", good(kTokens));
    EXPECT_EQ(weights_of(whole), weights_of(train(words(run, more + Words{"--resume", "auto"}))));
    EXPECT_EQ(steps("whole" + name), steps(run));
  }
}

// The same number of other tokens: bytes changed in place, and another file with that name.
TEST_F(ChangedData, ByOtherTokensEndsTheRunAfterACommit) {
  auto other = good(kTokens);
  for (auto& token : other) token = static_cast<std::uint16_t>(299 - token);
  const auto whole = succeeded(train(words("whole")));
  for (const std::string run : {"in-place", "renamed"}) {
    const auto ended = changed(run, {}, [&] {
      if (run == "in-place") return overwrite("t.u16", 0, other);
      write("other.u16", other);
      fs::rename(at("other.u16"), at("t.u16"));
    });
    expect_refusal(ended, 1, {"t.u16 has changed while it was in use", "is committed; restore the file"});
    expect_refusal(train(words(run, {"--resume", "auto"})), 2, {"has changed since it began: t.u16"});
    write("t.u16", good(kTokens));
    EXPECT_EQ(weights_of(whole), weights_of(train(words(run, {"--resume", "auto"}))));
    EXPECT_EQ(steps("whole"), steps(run));
  }
}

}  // namespace
}  // namespace terrace::test
