// Data with numbers that are no tokens: refused before anything happens, and if a file changes later, the run keeps its steps.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <tuple>
#include <utility>

#include "cli_test.h"

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
  // From that token on, without a new length.
  void spoil(const std::string& name, std::size_t first, std::size_t count) const {
    std::fstream file(at(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(first * sizeof(std::uint16_t)));
    const Tokens bad(count, 60000);
    file.write(reinterpret_cast<const char*>(bad.data()), static_cast<std::streamsize>(count * sizeof bad[0]));
  }
  [[nodiscard]] Words with(const Words& more) const {
    return Words{"--data", "t.u16", "--data-format", "u16", "--vocab", "300"} + more;
  }
};

TEST_F(TokenData, AForeignTokenIsRefusedBeforeAnythingHappens) {
  constexpr std::size_t kTokens = 10000;
  write("t.u16", good(kTokens));
  const auto whole = train(with({"--out-dir", "whole"}));
  ASSERT_EQ(0, whole.exit) << whole.described;
  ASSERT_EQ(0, train(with({"--steps", "2", "--out-dir", "cut"})).exit);
  const auto before = scratch_.read("cut/metrics.jsonl");
  const std::vector<std::string> says{"t.u16, token 9990: 60000 is not below the vocabulary of 300", "--vocab",
                                      "--data-format"};
  spoil("t.u16", 9990, 1);  // in the held-out part, which is read last
  for (const auto& ranks : {Words{}, Words{"--dp", "2"}, Words{"--pp", "2"}}) {
    expect_refusal(train(with(Words{"--out-dir", "none"} + ranks)), 2, says);
    EXPECT_FALSE(fs::exists(at("none")));
  }
  // The same file of a run that continues.
  expect_refusal(train(with({"--out-dir", "cut", "--resume", "auto"})), 2, says);
  EXPECT_EQ(before, scratch_.read("cut/metrics.jsonl"));
  write("t.u16", good(kTokens));
  const auto rest = train(with({"--out-dir", "cut", "--resume", "auto"}));
  ASSERT_EQ(0, rest.exit) << rest.described;
  EXPECT_EQ(weights_of(whole), weights_of(rest));
  // Each number of two bytes is a token of a larger vocabulary.
  spoil("t.u16", 9990, 1);
  EXPECT_EQ(0, train(with({"--vocab", "65536", "--out-dir", "large", "--steps", "1"})).exit);
}

// The file changes while the run is under way: after its first line, which is much further from the end than what a pipe holds.
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
  [[nodiscard]] Outcome changed(const std::string& run, const Words& more, const Change& change) const {
    Child child(launch(tiny("train", words(run, more))));
    child.read_lines(4);
    change();
    return child.wait();
  }
};

TEST_F(ChangedData, BeforeTheEvaluationCostsNoStep) {
  const auto whole = train(words("whole"));
  ASSERT_EQ(0, whole.exit) << whole.described;
  const Words two_ranks{"--dp", "2"};
  ASSERT_EQ(0, train(words("whole-two", two_ranks)).exit);
  for (const auto& [run, undisturbed, more] :
       {std::tuple{"one", "whole/result.json", Words{}}, {"two", "whole-two/result.json", two_ranks}}) {
    const auto ended = changed(run, more, [&] { spoil("t.u16", kTokens - kTokens / 20, kTokens / 20); });
    expect_refusal(ended, 1,
                   {"is not below the vocabulary of 300\n  the file has changed", "the state after step 400 is committed"});
    EXPECT_EQ(static_cast<std::size_t>(kSteps), steps(run).size());
    EXPECT_EQ(0, terrace({"ckpt", "verify", run}).exit);
    EXPECT_FALSE(fs::exists(at(run) / "result.json"));
    expect_refusal(train(words(run, more + Words{"--resume", "auto"})), 2, {"is not below the vocabulary of 300"});
    write("t.u16", good(kTokens));
    const auto rest = train(words(run, more + Words{"--resume", "auto"}));
    ASSERT_EQ(0, rest.exit) << rest.described;
    EXPECT_EQ(json_in(undisturbed).at("weights_xxh64").get<std::string>(), weights_of(rest));
    EXPECT_EQ(json_in(undisturbed).at("eval_loss"), json_in(std::string(run) + "/result.json").at("eval_loss"));
  }
}

TEST_F(ChangedData, DuringTheStepsCostsNoneOfThem) {
  for (const auto& [run, more] : {std::pair{"one", Words{}}, {"data", Words{"--dp", "2"}}, {"pipeline", Words{"--pp", "2"}}}) {
    const auto name = std::string(run);
    const auto whole = train(words("whole" + name, more));
    ASSERT_EQ(0, whole.exit) << whole.described;
    const auto ended = changed(run, more, [&] { fs::resize_file(at("t.u16"), 1000); });
    expect_refusal(
        ended, 1,
        {"t.u16 became shorter while it was in use", "is committed; restore the file, then continue with --resume auto"});
    const auto done = steps(run).size();
    EXPECT_LT(done, static_cast<std::size_t>(kSteps));
    EXPECT_THAT(ended.err, HasSubstr("the state after step " + std::to_string(done) + " is committed"));
    write("t.u16", good(kTokens));
    const auto rest = train(words(run, more + Words{"--resume", "auto"}));
    ASSERT_EQ(0, rest.exit) << rest.described;
    EXPECT_EQ(weights_of(whole), weights_of(rest));
    EXPECT_EQ(steps("whole" + name), steps(run));
  }
}

// With --durability none, only the weights are kept, in the file of --save.
TEST_F(ChangedData, SavesTheWeightsOfARunThatKeepsNothingElse) {
  ASSERT_EQ(0, train(words("whole", {"--save", "whole.safetensors"})).exit);
  const auto ended = changed("one", {"--durability", "none", "--save", "one.safetensors"},
                             [&] { spoil("t.u16", kTokens - kTokens / 20, kTokens / 20); });
  expect_refusal(ended, 1,
                 {"is not below the vocabulary", "the weights are saved; with --durability none nothing else is kept"});
  EXPECT_EQ(scratch_.read("whole.safetensors"), scratch_.read("one.safetensors"));
}

}  // namespace
}  // namespace terrace::test
