// Text and tokens of a run: the tokens are bytes if the run was trained on bytes, and otherwise the ids of a tokenizer.
//
// Owner:   the command. Threads: one at a time.
// Errors:  Error(Exit::usage) for a tokenizer that the run does not need, lacks, or cannot have, and for an `end` that is not a
//          token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/examples/lm/tokenizer/decode_stream.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/tokenizer_config.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

class RunText {
 public:
  // `end`: the token that ends a text: its spelling, "none", or "auto". With auto, these tokens end a text: the run's separator
  // of documents, those that the tokenizer's directory names (eos_token, eos_token_id), and if it names none, <|endoftext|> or
  // </s>.
  RunText(const RunConfig& config, const std::string& run, const std::filesystem::path& tokenizer, const std::string& end);

  // `special`: the spelling of a special token becomes that token.
  [[nodiscard]] std::vector<std::int32_t> tokens_of(std::string_view text, bool special = true) const;
  [[nodiscard]] bool ends(std::int32_t token) const;
  void end_at(std::string_view spelling);  // one more token that ends a text, if the tokenizer has it
  [[nodiscard]] std::size_t tokens() const { return tokenizer_ ? tokenizer_->ids() : 256; }
  [[nodiscard]] const char* unit() const { return tokenizer_ ? "tokens" : "bytes"; }
  // How conversations are written. `now`, in seconds since 1970, is the time that a chat template may show. Error(Exit::usage)
  // for a run of bytes.
  [[nodiscard]] lm::ChatFormat chat_format(std::int64_t now) const;
  [[nodiscard]] const lm::Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

  // Decodes token by token. An id that no token has adds nothing.
  class Stream {
   public:
    std::string add(std::int32_t token);
    std::string finish();

   private:
    friend class RunText;
    explicit Stream(const lm::Tokenizer* tokenizer);
    const lm::Tokenizer* tokenizer_;
    std::optional<lm::DecodeStream> ids_;
    lm::WholeCharacters bytes_;
  };
  [[nodiscard]] Stream stream() const { return Stream(tokenizer()); }

 private:
  void find_ends(const RunConfig& config, const std::string& end);

  std::optional<lm::Tokenizer> tokenizer_;
  lm::TokenizerConfig named_;  // from the files beside it
  std::vector<std::int32_t> ends_;
};

// How the program prints a text that a model or a file made: without control characters to a terminal, unchanged to a file.
std::string shown_on(int descriptor, const std::string& text);

}  // namespace terrace::cli
