// Writes the ids of files of text: reads pieces, encodes several of them at once, writes them in order, and records now and
// then how far it is, so that the same command goes on after a kill. The written bytes are the same for each number of threads
// and however often it was interrupted.
//
// Owner:   the caller. Threads: one; the pool's encode.
// Errors:  Error(Exit::usage) for input (a line that is no JSON object with the field), a setting or a record of another job;
// Error(Exit::runtime) if reading or writing fails;
//          Error(Exit::corrupt) for a damaged record.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/tokenizer/token_writer.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>

namespace terrace::lm {

struct TokenizeSettings {
  std::vector<std::filesystem::path> inputs;  // .jsonl and .ndjson: JSON objects in lines; else text
  std::filesystem::path out;
  TokenFile kind = TokenFile::u16;
  std::string field = "text";        // of a JSON object
  std::optional<TokenId> separator;  // a token between documents:
  bool separator_first = false;      // before each one, as llm.c has it; else after each one
  bool finds_added = false;          // see EncodeOptions
  std::uint64_t piece_bytes = std::uint64_t{1} << 20;
};

// The token that usually ends a document: <|endoftext|>, <|end_of_text|> or </s>. Nothing: the tokenizer has none of them.
std::optional<TokenId> usual_separator(const Tokenizer& tokenizer);

struct TokenizeProgress {
  std::uint64_t bytes = 0, bytes_in_all = 0;  // of the input
  std::uint64_t tokens = 0, documents = 0;
};

class TokenizeJob {
 public:
  TokenizeJob(TokenizeSettings settings, const Tokenizer& tokenizer, ThreadPool& pool);
  ~TokenizeJob();

  // Encodes and writes the next few pieces. Returns false when all is written.
  bool step();
  void record();  // a later job goes on from here
  void finish();  // after the last step: the files get their names
  [[nodiscard]] TokenizeProgress progress() const;

  // What it writes until it is finished.
  static std::vector<std::filesystem::path> unfinished_files(const TokenizeSettings& settings);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace::lm
