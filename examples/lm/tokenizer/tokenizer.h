// Tokenizers that give the same ids as their original libraries: BPE tokenizers of Hugging Face's library (tokenizer.json), and
// sentencepiece models (tokenizer.model).
//
// A text may contain invalid UTF-8. Such bytes are kept, as characters that are neither letters nor numbers. Sentencepiece
// models replace them by U+FFFD, as their library does.
//
// Owner:   the caller. Threads: encode() and decode() from any, each with its own Encoding.
// Errors:  Error(ErrorKind::refused) for a missing or unreadable file, for an unsupported part of it, with the part's name, and
//          from decode() for an id without a token; Error(ErrorKind::corrupt) for a file that is damaged or contradicts itself.
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

// The tokenizer.json or tokenizer.model of a folder; empty: it has none. If both exist, they are one tokenizer in two forms.
std::filesystem::path tokenizer_in(const std::filesystem::path& folder);

struct EncodeOptions {
  bool finds_added = true;     // special and other added tokens in the text become single tokens, and not their letters
  bool with_template = false;  // adds the file's tokens before and after each text, such as <|begin_of_text|>
  bool goes_on = false;        // the text continues another one, so no space is added before it
};
struct DecodeOptions {
  bool skips_special = false;
};
// `text` is removed from the front and the end of a decoded text, up to these numbers of times.
struct Stripped {
  std::string text;
  std::size_t at_front = 0, at_end = 0;
};

// A thread's state for encoding: reused memory, and the tokens of frequent words. Belongs to one tokenizer.
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
  // Also reads the files beside it. A name that ends in ".model" means sentencepiece.
  static Tokenizer read(const std::filesystem::path& file);
  static bool is_sentencepiece(const std::filesystem::path& file);
  static bool reads_sentencepiece();  // whether this build supports it
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  void encode(std::string_view text, EncodeOptions options, Encoding& with, TokenBuffer& out) const;
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, DecodeOptions options = {}) const;
  // A decoded text is the concatenated pieces of its tokens, without what is stripped (decode_stream.h does this token by
  // token).
  [[nodiscard]] std::string piece(TokenId id, DecodeOptions options = {}) const;
  [[nodiscard]] const Stripped& stripped() const;

  [[nodiscard]] std::size_t ids() const;     // the largest id + 1
  [[nodiscard]] bool has(TokenId id) const;  // whether a token has the id
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view content) const;
  [[nodiscard]] bool is_added(TokenId id) const;           // whether it is searched before a text is cut into words
  [[nodiscard]] std::vector<std::string> special() const;  // the texts of the special tokens, by id
  // Finds a place where a text can be cut so that the tokens of the two parts are those of the whole: between a letter and a
  // space that is followed by a letter, or else where a word or a possible token surely ends. Returns the last such place at or
  // before `most`; nothing if there is none, or if this tokenizer may look further ahead. `finds_added`: as it will be in
  // encode().
  [[nodiscard]] std::optional<std::size_t> cut_before(std::string_view text, std::size_t most, bool finds_added = true) const;
  // For a tokenizer.json, the text that is written back. Tokenizers with equal texts encode equally.
  [[nodiscard]] std::string text() const;

 private:
  explicit Tokenizer(std::unique_ptr<const TokenizerModel> model);

  std::unique_ptr<const TokenizerModel> model_;
};

}  // namespace terrace::lm
