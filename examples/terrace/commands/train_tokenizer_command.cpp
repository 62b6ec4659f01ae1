// terrace train-tokenizer FILES… --out FILE: makes a tokenizer.json from text.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/tokenizer/bpe_trainer.h>
#include <terrace/examples/lm/tokenizer/words/word_counts.h>
#include <terrace/examples/terrace/base/output_file.h>
#include <terrace/examples/terrace/base/stop_signal.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/parse_words.h>

namespace terrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct TrainerWords {
  std::vector<std::string> files, special{"<|endoftext|>"};
  std::string out, pattern = "llama3", memory = "2GiB";
  lm::CountSettings count;
  lm::TrainerSettings trainer;
  int threads = 0;
};

constexpr const char* kAboutTrainer = "make a tokenizer.json from text";

void add_trainer_options(CLI::App& app, TrainerWords& words) {
  app.add_option("files", words.files, "files of text; .jsonl and .ndjson: a JSON object in each line")->type_name("FILE...");
  app.add_option("--out", words.out, "the tokenizer.json to write")->type_name("FILE");
  app.add_option("--vocab", words.trainer.vocabulary, "ids in all: special tokens, 256 bytes, and merges")
      ->check(CLI::Range(256, 1 << 24))
      ->capture_default_str();
  app.add_option("--pattern", words.pattern, "how text is cut into words, within which tokens are made")
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen2", "o200k"}))
      ->capture_default_str();
  app.add_option("--special", words.special, "a special token, which gets the lowest id; repeatable")
      ->type_name("TOKEN")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  app.add_option("--min-count", words.trainer.least_count, "neighbours that stand together more rarely do not merge")
      ->capture_default_str();
  app.add_option("--memory", words.memory, "of the words that are counted; if they need more, the rarest ones are dropped")
      ->type_name("SIZE")
      ->capture_default_str();
  app.add_option("--field", words.count.field, "the text's name in a JSON object")->capture_default_str();
  app.add_option("--threads", words.threads, "threads; 0: one for each core")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
}

lm::Pattern pattern_of(const std::string& name) {
  if (name == "gpt2") return lm::Pattern::gpt2;
  if (name == "qwen2") return lm::Pattern::qwen2;
  return name == "o200k" ? lm::Pattern::o200k : lm::Pattern::llama3;
}

// Prints a line every few seconds.
class Progress {
 public:
  template <class Text>
  bool operator()(const Text& text) {
    if (Clock::now() - shown_ >= std::chrono::seconds(5)) {
      base::say(stderr, text() + "\n");
      shown_ = Clock::now();
    }
    return stop_signal() == 0;
  }

 private:
  Clock::time_point shown_ = Clock::now();
};

CommandText describe_train_tokenizer() {
  TrainerWords words;
  CLI::App app(kAboutTrainer);
  add_trainer_options(app, words);
  return describe_command(app, "train-tokenizer");
}

Exit run_train_tokenizer(int argc, const char* const* argv) {
  TrainerWords words;
  CLI::App app(kAboutTrainer, "terrace train-tokenizer");
  add_trainer_options(app, words);
  app.allow_extras();
  if (const auto answer = parse_words(app, argc, argv, "train-tokenizer"); !answer.empty()) {
    std::fputs(answer.c_str(), stdout);
    return Exit::ok;
  }
  if (words.files.empty()) refuse("train-tokenizer needs files with text", "train-tokenizer");
  if (words.out.empty()) refuse("train-tokenizer needs --out FILE", "train-tokenizer");
  const std::vector<std::filesystem::path> unfinished{words.out + ".tmp"};
  demand_output(words.out, words.files, unfinished);
  words.count.inputs.assign(words.files.begin(), words.files.end());
  words.count.pattern = words.trainer.pattern = pattern_of(words.pattern);
  words.count.most_bytes = parse_bytes(words.memory);
  words.trainer.special = words.special;

  catch_stop_signals();
  ThreadPool pool(words.threads);
  Progress progress;
  const auto counts = lm::count_words(words.count, pool, [&](std::uint64_t done, std::uint64_t all) {
    return progress([&] { return fmt::format("counted the words of {} of {}", format_bytes(done), format_bytes(all)); });
  });
  if (counts.most_missed > 0)
    base::say(
        stderr,
        fmt::format("all words need more than --memory {}: the rarest ones were dropped, and counts may be too low by {}\n",
                    words.memory, counts.most_missed));
  const auto file = lm::train_bpe(counts.words, words.trainer, [&](std::size_t ids) {
    return progress([&] { return fmt::format("{} of {} ids", ids, words.trainer.vocabulary); });
  });
  try {
    write_text_file(words.out, file.text());
  } catch (const Error& error) {
    throw Error(
        fmt::format("{} cannot be written: {}\n  make room there, or give --out a file elsewhere", words.out, error.what()));
  }
  fmt::print("{}: {} ids from {} different words\n", words.out, file.vocabulary.size(), counts.words.size());
  return Exit::ok;
}

}  // namespace

Command train_tokenizer_command() {
  return {.name = "train-tokenizer",
          .help = "make a tokenizer.json from text",
          .takes = {"json"},
          .examples = {"terrace train-tokenizer book.txt --out tokenizer.json --vocab 8192"},
          .run_words = run_train_tokenizer,
          .describe = describe_train_tokenizer};
}

}  // namespace terrace::cli
