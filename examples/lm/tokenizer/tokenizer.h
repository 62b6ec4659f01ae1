// Tokenizers with the ids of the libraries that made them: BPE tokenizers that a tokenizer.json of Hugging Face's library
// describes, and models of sentencepiece (tokenizer.model).
//
// A text may have invalid UTF-8: such bytes are kept, as characters that are neither letters nor numbers. Models of
// sentencepiece make U+FFFD of them, as their library does.
//
// Owner:   the caller. Threads: encode() and decode() from any, each with its own Encoding.
// Errors:  Error(Exit::usage) for a file that is missing or unreadable, and for a part of it that is not supported, by name;
//          Error(Exit::corrupt) for a file that is damaged or contradicts itself; Error(Exit::usage) from decode() for an id
//          that is no token.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/tokenizer/tokenizer_file.h>
#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

class TokenizerModel;

struct EncodeOptions {
  bool finds_added = true;     // special and other added tokens in the text are these tokens, and not their letters
  bool with_template = false;  // and what the file sets before and after each text, such as <|begin_of_text|>
  bool goes_on = false;        // it continues a text, so the space that some tokenizers set before a text is not set
};
struct DecodeOptions {
  bool skips_special = false;
};
// What the decoder takes from the front and from the end of a text, so often.
struct Stripped {
  std::string text;
  std::size_t at_front = 0, at_end = 0;
};

// What a thread encodes with: it keeps memory and the tokens of frequent words. Made for one tokenizer.
class Encoding {
 public:
  Encoding();
  ~Encoding();
  Encoding(Encoding&&) noexcept;
  Encoding& operator=(Encoding&&) noexcept;

 private:
  friend class Tokenizer;
  friend class TokenizerModel;
  struct State;
  std::unique_ptr<State> state_;
};

class Tokenizer {
 public:
  explicit Tokenizer(TokenizerFile file);
  // With the files beside it. One whose name ends in ".model" is of sentencepiece.
  static Tokenizer read(const std::filesystem::path& file);
  static bool is_sentencepiece(const std::filesystem::path& file);
  static bool reads_sentencepiece();  // whether this build does
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  void encode(std::string_view text, EncodeOptions options, Encoding& with, TokenBuffer& out) const;
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;
  // A decoded text is the pieces of its tokens, without what is stripped (decode_stream.h joins them one by one).
  [[nodiscard]] std::string piece(TokenId id, DecodeOptions options = {}) const;
  [[nodiscard]] const Stripped& stripped() const;

  [[nodiscard]] std::size_t ids() const;     // the largest id + 1
  [[nodiscard]] bool has(TokenId id) const;  // whether a token has the id
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view content) const;
  [[nodiscard]] bool is_added(TokenId id) const;           // found before a text is cut into words
  [[nodiscard]] std::vector<std::string> special() const;  // the contents of the special tokens, by their ids
  // Where a text may be cut so that the tokens of both parts are those of the whole: between a letter and a space with a letter
  // after it, or else where a word or what can be a token surely ends. The last such place at or before `most`; nothing if
  // there is none, or if this tokenizer may look further. `finds_added`: as the text will be encoded.
  [[nodiscard]] std::optional<std::size_t> cut_before(std::string_view text, std::size_t most, bool finds_added = true) const;
  // A tokenizer.json is written back so. Equal texts are tokenizers that encode equally.
  [[nodiscard]] std::string text() const;

 private:
  explicit Tokenizer(std::unique_ptr<const TokenizerModel> model);

  std::unique_ptr<const TokenizerModel> model_;
};

}  // namespace terrace::lm
