// The shortest command trains on what the files hold, or says what to type.
#include <sstream>

#include "cli_test.h"

namespace terrace::test {
namespace {

class FoundData : public Cli {
 protected:
  FoundData() {
    EXPECT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += R"({"prompt":"question )" + std::to_string(i) + R"(","completion":"answer )" + std::to_string(i * i) + "\"}\n";
    scratch_.write("chat.jsonl", lines);
  }
  // What was found, as the run's configuration keeps it, and that the run is the one of the same words.
  void expect_found(const std::string& format, const std::string& said, const Words& words) {
    const auto run = "found " + format;
    const auto found = train(words + Words{"--out-dir", run});
    ASSERT_EQ(0, found.exit) << found.described;
    EXPECT_THAT(found.out, HasSubstr(said)) << found.described;
    EXPECT_THAT(scratch_.read(run + "/config.toml"), HasSubstr("data-format = \"" + format + "\""));
    const auto given = train(words + Words{"--out-dir", "given " + format, "--data-format", format});
    EXPECT_EQ(weights_of(given), weights_of(found)) << found.described;
  }
  const Words with_tokenizer_{"--tokenizer", "tokenizer.json", "--vocab", "280"};
};

TEST_F(FoundData, IsWhatTheFilesHold) {
  expect_found("bytes", "data: corpus.txt: its bytes are the tokens", {});
  expect_found("jsonl", "data: chat.jsonl: conversations, of which the answers are learned",
               Words{"--data", "chat.jsonl"} + with_tokenizer_);
  ASSERT_EQ(0, terrace({"tokenize", "corpus.txt", "--tokenizer", "tokenizer.json", "--out", "ids"}).exit);
  expect_found("u16", "data: ids: token ids (u16)", Words{"--data", "ids"} + with_tokenizer_);
  const auto resumed = train(Words{"--data", "ids", "--resume", "found u16", "--steps", "6"} + with_tokenizer_);
  EXPECT_EQ(0, resumed.exit) << resumed.described;
}

TEST_F(FoundData, IsNotTrainedOnAsSomethingElse) {
  const auto refused = [&](const Words& words, const std::vector<std::string>& said) {
    const auto outcome = train(words + Words{"--out-dir", "none"});
    expect_refusal(outcome, 2, said);
    EXPECT_FALSE(std::filesystem::exists(at("none")));
    return outcome;
  };
  refused({"--data", "chat.jsonl"}, {"needs a tokenizer", "--tokenizer FILE"});
  refused({"--vocab", "300"}, {"corpus.txt is text", "256 ids", "--vocab 300", "--data-format bytes"});
  refused({"--data", "corpus.txt", "chat.jsonl"}, {"corpus.txt is bytes, and chat.jsonl is jsonl", "files of one form"});
  EXPECT_EQ(0, train({"--vocab", "300", "--data-format", "bytes", "--out-dir", "bytes"}).exit);

  // The line that it says works as it stands.
  const auto text = refused(with_tokenizer_, {"corpus.txt is text", "terrace tokenize corpus.txt", "--data corpus.txt.ids"});
  const std::string before = "its token ids: terrace ";
  const auto begin = text.err.find(before) + before.size();
  std::istringstream line(text.err.substr(begin, text.err.find(',', begin) - begin));
  Words words;
  for (std::string word; line >> word;) words.push_back(word);
  const auto made = terrace(words);
  ASSERT_EQ(0, made.exit) << made.described;
  EXPECT_EQ(0, train(with_tokenizer_ + Words{"--data", "corpus.txt.ids"}).exit);
}

}  // namespace
}  // namespace terrace::test
