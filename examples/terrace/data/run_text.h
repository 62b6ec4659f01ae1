// Text and tokens of a run: the tokens are bytes if the run was trained on bytes, and otherwise the ids of a tokenizer.
//
// Owner:   the command. Threads: one at a time.
// Errors:  Error(ErrorKind::refused) for a tokenizer that the run does not need, lacks, or cannot have, and for an `end` that
//          is not a token.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/examples/lm/generate/model_text.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

class RunText : public lm::ModelText {
 public:
  // `end`: the token that ends a text: its spelling, "none", or "auto". With auto, these tokens end a text: the run's separator
  // of documents, those that the tokenizer's directory names (eos_token, eos_token_id), and if it names none, <|endoftext|> or
  // </s>.
  RunText(const RunConfig& config, const std::string& run, const std::filesystem::path& tokenizer, const std::string& end);

  [[nodiscard]] const char* unit() const { return tokenizer() ? "tokens" : "bytes"; }
  // How conversations are written. `now`, in seconds since 1970, is the time that a chat template may show.
  // Error(ErrorKind::refused) for a run of bytes.
  [[nodiscard]] lm::ChatFormat chat_format(std::int64_t now) const;

 private:
  void find_ends(const RunConfig& config, const std::string& end);
};

// How the program prints a text that a model or a file made: without control characters to a terminal, unchanged to a file.
std::string shown_on(int descriptor, const std::string& text);

}  // namespace terrace::cli
