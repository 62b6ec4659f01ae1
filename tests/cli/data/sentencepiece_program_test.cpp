// Runs with a sentencepiece tokenizer: from text to ids, to a run, to its answers, to a model directory, and on from there.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

class SentencePieceRuns : public Ranks {
 protected:
  SentencePieceRuns() {
    scratch_.write("text.txt", "what is a tier and what is a chunk\nuser assistant answer\n");
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        "--input=" + at("text.txt").string() + " --model_prefix=" + at("own").string() +
        " --vocab_size=300 --hard_vocab_limit=false --model_type=bpe --byte_fallback=true --num_threads=1 --minloglevel=2");
    EXPECT_TRUE(status.ok()) << status.ToString();
    scratch_.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
    std::string lines;
    for (int i = 0; i < 9; ++i)
      lines += R"({"instruction":"what is )" + std::to_string(i) + R"(","output":")" + std::string(1 + i % 5, 'a') + "\"}\n";
    scratch_.write("chat.jsonl", lines);
  }
  const Words learn_ = flags("--data chat.jsonl --data-format jsonl --seq-len 64 --steps 1 --eval-batches 1");
};

TEST_F(SentencePieceRuns, FilesOfIdsHaveThoseOfTheLibrary) {
  succeeded(terrace({"tokenize", "text.txt", "--tokenizer", "own.model", "--out", "ids"}));
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.Load(at("own.model").string()).ok());
  std::vector<int> expected;
  ASSERT_TRUE(library.Encode(scratch_.read("text.txt"), &expected).ok());
  expected.push_back(library.eos_id());
  const auto bytes = scratch_.read("ids");
  std::vector<std::uint16_t> ids(bytes.size() / 2);
  std::memcpy(ids.data(), bytes.data(), ids.size() * 2);
  EXPECT_EQ(expected, std::vector<int>(ids.begin(), ids.end()));
  scratch_.write("bad.model", "no model");
  expect_refusal(terrace({"tokenize", "text.txt", "--tokenizer", "bad.model", "--out", "ids"}), 5,
                 {"bad.model", "no model of"});
}

TEST_F(SentencePieceRuns, ARunKeepsItsTokenizerAndAnswersWithIt) {
  scratch_.write("tokenizer.json", "another tokenizer, which is not meant");
  succeeded(train(learn_ + Words{"--tokenizer", "own.model", "--vocab", "320", "--out-dir", "run"}));
  const auto model = scratch_.read("own.model");
  for (const auto* const name : {"own.model", "tokenizer.json", "tokenizer_config.json"}) fs::remove(at(name));
  EXPECT_EQ(model, scratch_.read("run/tokenizer/tokenizer.model"));
  EXPECT_FALSE(fs::exists(at("run/tokenizer/tokenizer.json")));
  succeeded(terrace({"ckpt", "export", "run", "directory"}));
  EXPECT_EQ(model, scratch_.read("directory/tokenizer.model"));
  succeeded(train(Words{"--model", "directory"} + learn_ + Words{"--out-dir", "next"}));
  EXPECT_EQ(model, scratch_.read("next/tokenizer/tokenizer.model"));
  succeeded(terrace({"generate", "next", "--prompt", "what is", "--max-tokens", "3"}));
  scratch_.write("said", "hello\n");
  auto chat = launch({"chat", "next", "--max-tokens", "9", "--json"});
  chat.in_child = [file = at("said").string()] { ::dup2(::open(file.c_str(), O_RDONLY), STDIN_FILENO); };
  const auto answered = succeeded(run(chat));
  EXPECT_EQ(1U, answered.lines().size()) << answered.described;
}

}  // namespace
}  // namespace terrace::test
