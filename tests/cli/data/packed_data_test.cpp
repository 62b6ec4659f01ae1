// Data packed by gzip or zstd is unpacked for training; damaged data is refused before a run begins.
#include <terrace/tests/support/packed.h>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

class PackedData : public Cli {
 protected:
  PackedData() {
    EXPECT_EQ(0, terrace({"train-tokenizer", "corpus.txt", "--vocab", "280", "--out", "tokenizer.json"}).exit);
    std::vector<std::string> objects;
    for (int i = 0; i < 40; ++i)
      objects.push_back(R"({"prompt":"question )" + std::to_string(i) + R"(","completion":"answer )" + std::to_string(i * i) +
                        "\"}");
    std::string lines, array = "[";
    for (const auto& object : objects) {
      lines += object + "\n";
      array += (array.size() > 1 ? ",\n" : "") + object;
    }
    scratch_.write("chat.jsonl", lines);
    scratch_.write("chat.json", array + "]");
  }
  // Packs a text as two members or two frames.
  void pack(const std::string& file) const {
    const auto text = scratch_.read(file);
    const auto half = text.size() / 2;
    scratch_.write(file + ".gz", gzip_packed(text.substr(0, half)) + gzip_packed(text.substr(half)));
    scratch_.write(file + ".zst", zstd_packed(text.substr(0, half)) + zstd_packed(text.substr(half)));
  }
  const Words with_tokenizer_{"--tokenizer", "tokenizer.json"};
};

TEST_F(PackedData, IsTrainedOnAsWhatItHolds) {
  ASSERT_EQ(0, terrace({"tokenize", "corpus.txt", "--tokenizer", "tokenizer.json", "--out", "ids"}).exit);
  for (const auto& [file, more, form] :
       {std::tuple<std::string, Words, std::string>{"chat.jsonl", with_tokenizer_, "conversations"},
        {"chat.json", with_tokenizer_, "conversations"},
        {"corpus.txt", with_tokenizer_, "text, in the tokens of tokenizer.json"},
        {"corpus.txt", {}, "its bytes are the tokens"},
        {"ids", Words{"--vocab", "280"}, "token ids (u16)"}}) {
    SCOPED_TRACE(file + ": " + form);
    pack(file);
    std::string plain;
    for (const auto* const ending : {"", ".gz", ".zst"}) {
      const auto run = "run of " + file + ending + std::to_string(more.size());
      const auto outcome = succeeded(train(Words{"--data", file + ending, "--out-dir", run} + more));
      EXPECT_THAT(outcome.out, HasSubstr("data: " + file + ending + ": " + form));
      if (plain.empty()) plain = weights_of(outcome);
      EXPECT_EQ(plain, weights_of(outcome)) << ending;
      succeeded(terrace({"train", "--resume", run, "--steps", "5"}));
    }
  }
}

TEST_F(PackedData, IsPlannedEvaluatedAndTokenized) {
  for (const auto* const file : {"corpus.txt", "chat.jsonl"}) pack(file);
  ASSERT_EQ(0, train({"--eval-data", "corpus.txt.zst"}).exit);
  const auto plain = terrace({"eval", "run", "--data", "corpus.txt", "--json"}),
             packed = succeeded(terrace({"eval", "run", "--data", "corpus.txt.gz", "--json"}));
  EXPECT_EQ(nlohmann::json::parse(plain.out)[0]["loss"], nlohmann::json::parse(packed.out)[0]["loss"]);
  for (const auto& words : {Words{"--data", "7", "corpus.txt.gz", "3", "corpus.txt"},
                            {"--data", "corpus.txt.gz", "--epochs", "2"},
                            Words{"--data", "chat.jsonl.gz"} + with_tokenizer_}) {
    succeeded(terrace(tiny("plan", words)));
  }
  for (const auto& [name, more] : {std::pair{"corpus.txt", Words{}}, {"chat.jsonl", Words{"--field", "completion"}}}) {
    const std::string file = name;
    for (const auto* const ending : {"", ".gz", ".zst"}) {
      succeeded(
          terrace(Words{"tokenize", file + ending, "--tokenizer", "tokenizer.json", "--out", file + ending + ".ids"} + more));
      EXPECT_EQ(scratch_.read(file + ".ids"), scratch_.read(file + ending + ".ids")) << ending;
    }
  }
  succeeded(terrace({"train-tokenizer", "corpus.txt.gz", "--vocab", "280", "--out", "of-packed.json"}));
  EXPECT_EQ(scratch_.read("tokenizer.json"), scratch_.read("of-packed.json"));
}

TEST_F(PackedData, ThatIsDamagedIsRefused) {
  pack("chat.jsonl");
  pack("corpus.txt");
  for (const std::string file : {"chat.jsonl.gz", "chat.jsonl.zst", "corpus.txt.gz", "corpus.txt.zst"}) {
    const auto whole = scratch_.read(file);
    auto flipped = whole;
    flipped[whole.size() - 1] = static_cast<char>(flipped[whole.size() - 1] ^ 1);
    for (const auto& [bytes, said] : {std::pair{whole.substr(0, whole.size() - 3), "it is cut: the file ends at byte"},
                                      {whole + "more", "stand 4 bytes that it has not"},
                                      {flipped, "cannot be read on at byte"}}) {
      scratch_.write(file, bytes);
      for (const auto& more : {Words{}, with_tokenizer_}) {
        if (more.empty() && file.starts_with("chat")) continue;
        expect_refusal(train(Words{"--data", file, "--out-dir", "none"} + more), 2, {file, said});
        EXPECT_FALSE(std::filesystem::exists(at("none")));
      }
      expect_refusal(terrace(Words{"tokenize", file, "--tokenizer", "tokenizer.json", "--field", "prompt", "--out", "ids"}), 2,
                     {file, said});
      EXPECT_FALSE(std::filesystem::exists(at("ids")));
    }
    scratch_.write(file, whole);
    EXPECT_EQ(0, train(Words{"--data", file, "--out-dir", "of " + file} + with_tokenizer_).exit) << "nothing damaged was kept";
  }
  scratch_.write("twice.gz", gzip_packed(scratch_.read("chat.jsonl.zst")));
  expect_refusal(train(Words{"--data", "twice.gz", "--out-dir", "none"} + with_tokenizer_), 2,
                 {"twice.gz: it is packed twice"});
}

}  // namespace
}  // namespace terrace::test
