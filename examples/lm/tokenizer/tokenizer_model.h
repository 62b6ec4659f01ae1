// The interface of a Tokenizer to one kind of file: json_tokenizer.cpp for a tokenizer.json, and sentencepiece.cpp for a
// tokenizer.model.
//
// Internal to the tokenizer. Owner: the Tokenizer. Threads: any, each with its own state. Errors: those of Tokenizer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/tokenizer/sentencepiece_settings.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>

namespace terrace::lm {

struct Encoding::State {
  virtual ~State() = default;
};

class TokenizerModel {
 public:
  using State = Encoding::State;
  virtual ~TokenizerModel() = default;
  [[nodiscard]] virtual std::unique_ptr<State> new_state() const = 0;
  virtual void encode(std::string_view text, EncodeOptions options, State& state, TokenBuffer& out) const = 0;
  [[nodiscard]] virtual std::string piece(TokenId id, DecodeOptions options) const = 0;
  [[nodiscard]] virtual const Stripped& stripped() const = 0;
  [[nodiscard]] virtual std::size_t ids() const = 0;
  [[nodiscard]] virtual bool has(TokenId id) const = 0;
  [[nodiscard]] virtual std::optional<TokenId> id_of(std::string_view content) const = 0;
  [[nodiscard]] virtual const std::vector<AddedToken>& added() const = 0;  // sorted by id
  [[nodiscard]] virtual std::optional<std::size_t> cut_before(std::string_view text, std::size_t most,
                                                              bool finds_added) const = 0;
  [[nodiscard]] virtual std::string text() const = 0;
};

std::unique_ptr<const TokenizerModel> json_model(TokenizerFile file);
bool sentencepiece_available();
// `bytes`: the file's content. Throws Error(ErrorKind::refused) if the build does not have the sentencepiece library.
std::unique_ptr<const TokenizerModel> sentencepiece_model(std::string bytes, SentencePieceSettings settings);

}  // namespace terrace::lm
