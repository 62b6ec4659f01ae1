// Writes the token ids of text files: reads pieces, encodes several at once, writes them in order, and regularly records the
// progress, so that the same command continues after a kill. The output does not depend on the number of threads or on
// interruptions.
//
// Owner:   the caller. Threads: one; the threads of the pool encode.
// Errors:  Error(ErrorKind::refused) for invalid input (a line that is not a JSON object with the field), an invalid setting,
//          or a record of another job; Error(ErrorKind::failed) if reading or writing fails; Error(ErrorKind::corrupt) for a
//          damaged record.
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
  std::vector<std::filesystem::path> inputs;  // .jsonl and .ndjson: JSON lines; others: text
  std::filesystem::path out;
  TokenFile kind = TokenFile::u16;
  std::string field = "text";        // of a JSON object
  std::optional<TokenId> separator;  // a token between documents:
  bool separator_first = false;      // before each document, as in llm.c; false: after each
  bool finds_added = false;          // see EncodeOptions
  std::uint64_t piece_bytes = std::uint64_t{1} << 20;
  Log log = {};
};

// The token that usually ends a document: <|endoftext|>, <|end_of_text|> or </s>. Nothing if the tokenizer has none of them.
std::optional<TokenId> usual_separator(const Tokenizer& tokenizer);

struct TokenizeProgress {
  std::uint64_t bytes = 0, bytes_in_all = 0;  // of the input
  std::uint64_t tokens = 0, documents = 0;
};

class TokenizeJob {
 public:
  TokenizeJob(TokenizeSettings settings, const Tokenizer& tokenizer, ThreadPool& pool);
  ~TokenizeJob();

  // Encodes and writes the next pieces. Returns false when everything is written.
  bool step();
  void record();  // saves the position from which a later job continues
  void finish();  // after the last step: renames the files
  [[nodiscard]] TokenizeProgress progress() const;

  // The files that it writes before it is finished.
  static std::vector<std::filesystem::path> unfinished_files(const TokenizeSettings& settings);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace terrace::lm
