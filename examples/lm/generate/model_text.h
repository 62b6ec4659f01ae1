// Text and tokens of a model: the tokens are the ids of a tokenizer, or bytes. Knows the tokens that end a text.
//
// Owner:   the caller; streams borrow it. Threads: one at a time. Errors: those of the tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/tokenizer/decode_stream.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/tokenizer_config.h>

namespace terrace::lm {

class ModelText {
 public:
  ModelText() = default;  // the tokens are bytes
  // `named`: from the files beside the tokenizer.
  ModelText(Tokenizer tokenizer, TokenizerConfig named) : tokenizer_(std::move(tokenizer)), named_(std::move(named)) {}

  // `special`: the spelling of a special token becomes that token.
  [[nodiscard]] std::vector<std::int32_t> tokens_of(std::string_view text, bool special = true) const;
  [[nodiscard]] std::size_t tokens() const { return tokenizer_ ? tokenizer_->ids() : 256; }
  [[nodiscard]] const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }  // null: bytes
  [[nodiscard]] const TokenizerConfig& named() const { return named_; }

  // No token ends a text at first.
  [[nodiscard]] bool ends(std::int32_t token) const;
  void end_at(std::int32_t token) { ends_.push_back(token); }
  void end_at(std::string_view spelling);  // if the tokenizer has it
  // The tokens that the tokenizer's directory names (eos_token, eos_token_id). If no token ends a text then, <|endoftext|> or
  // </s>.
  void end_as_named();

  // Decodes token by token. An id that no token has adds nothing.
  class Stream {
   public:
    std::string add(std::int32_t token);
    std::string finish();

   private:
    friend class ModelText;
    explicit Stream(const Tokenizer* tokenizer);
    const Tokenizer* tokenizer_;
    std::optional<DecodeStream> ids_;
    WholeCharacters bytes_;
  };
  [[nodiscard]] Stream stream() const { return Stream(tokenizer()); }

 private:
  std::optional<Tokenizer> tokenizer_;
  TokenizerConfig named_;
  std::vector<std::int32_t> ends_;
};

}  // namespace terrace::lm
