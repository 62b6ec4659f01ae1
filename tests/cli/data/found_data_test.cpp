// The shortest command trains on whatever format its files have, or says what to type.
#include <map>

#include <terrace/tests/cli/cli_test.h>

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
  // Checks the detected format in the run's configuration, and that the run equals one with the format given.
  void expect_found(const std::string& format, const std::string& said, const Words& words) {
    const auto run = "found " + format;
    const auto found = succeeded(train(words + Words{"--out-dir", run}));
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
  succeeded(train(Words{"--data", "ids", "--resume", "found u16", "--steps", "6"} + with_tokenizer_));
}

TEST_F(FoundData, IsNotTrainedOnAsSomethingElse) {
  const auto refused = [&](const Words& words, const std::vector<std::string>& said) {
    const auto outcome = train(words + Words{"--out-dir", "none"});
    expect_refusal(outcome, 2, said);
    EXPECT_FALSE(std::filesystem::exists(at("none")));
    return outcome;
  };
  refused({"--data", "chat.jsonl"}, {"needs a tokenizer", "--tokenizer FILE"});
  refused({"--vocab", "300"}, {"corpus.txt is text", "256 ids", "--vocab 300", "--tokenizer", "--data-format bytes"});
  refused({"--data", "corpus.txt", "chat.jsonl"}, {"corpus.txt is bytes, and chat.jsonl is jsonl", "files of one form"});
  EXPECT_EQ(0, train({"--vocab", "300", "--data-format", "bytes", "--out-dir", "bytes"}).exit);
}

// Once for all starts, from a text with any name.
TEST_F(FoundData, TextIsReadWithTheTokenizer) {
  ASSERT_EQ(0, terrace({"tokenize", "corpus.txt", "--tokenizer", "tokenizer.json", "--out", "ids"}).exit);
  const auto of_ids = succeeded(train(Words{"--data", "ids", "--tokenizer", "tokenizer.json", "--out-dir", "ids run"}));
  EXPECT_THAT(of_ids.out, HasSubstr("--vocab 280 (the tokenizer's)"));
  const auto cached = [&] {
    std::map<std::string, std::filesystem::file_time_type> files;
    for (const auto& entry : std::filesystem::directory_iterator(at("cache/terrace/tokens")))
      if (entry.path().extension() == ".u16") files[entry.path().filename()] = entry.last_write_time();
    return files;
  };
  const auto of_text = succeeded(train(Words{"--tokenizer", "tokenizer.json", "--steps", "2"}));
  EXPECT_THAT(of_text.out, HasSubstr("data: corpus.txt: text, in the tokens of tokenizer.json"));
  const auto made = cached();
  ASSERT_EQ(1U, made.size());
  EXPECT_EQ(scratch_.read("ids"), scratch_.read("cache/terrace/tokens/" + made.begin()->first));
  EXPECT_EQ(weights_of(of_ids), weights_of(terrace({"train", "--resume", "run", "--steps", "4"})));
  EXPECT_EQ(made, cached()) << "made once";
  // Without the cache, the same ids are made again under the same name. Other text gives other ids, which the run refuses.
  std::filesystem::remove_all(at("cache"));
  EXPECT_EQ(0, terrace({"train", "--resume", "run", "--steps", "5"}).exit);
  EXPECT_EQ(made.begin()->first, cached().begin()->first);
  scratch_.write("corpus.txt", EnglishText(kCorpusSeed + 1).of(kCorpusBytes));
  expect_refusal(terrace({"train", "--resume", "run", "--steps", "6"}), 2, {"corpus-"});
  EXPECT_EQ(2U, cached().size());
  const auto evaluated = succeeded(terrace({"eval", "run", "--data", "corpus.txt"}));
  EXPECT_THAT(evaluated.out, HasSubstr("corpus.txt "));
  expect_refusal(train({"--data-format", "text", "--out-dir", "none"}), 2, {"--data-format text needs a tokenizer"});
}

}  // namespace
}  // namespace terrace::test
