// Byte-pair encoding of one word: starts with its bytes or characters, then merges repeatedly, always the pair with the lowest
// rank, and of equal ones the leftmost.
//
// Owner:   the tokenizer. Threads: encode_word() from any, each with its own MergeScratch.
// Errors:  Error(ErrorKind::corrupt) from the constructor for a vocabulary or merges that contradict each other.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <terrace/examples/lm/tokenizer/words/character_tokens.h>
#include <terrace/examples/lm/tokenizer/words/merge_table.h>
#include <terrace/examples/lm/tokenizer/words/short_word.h>
#include <terrace/examples/lm/tokenizer/words/token_id.h>
#include <terrace/examples/lm/tokenizer/words/word_table.h>

namespace terrace::lm {

struct BpeParts {
  std::vector<std::pair<std::string, TokenId>> vocabulary;  // token spellings as in the file
  std::vector<std::pair<std::string, std::string>> merges;  // the first one is preferred
  bool byte_level = false;     // tokens are spelled with letters that represent bytes (byte_letters.h)
  bool byte_fallback = false;  // a character that is not a token becomes tokens <0xNN>
  bool ignore_merges = false;  // a word that is itself a token is not merged
  bool fuse_unknown = false;   // adjacent unknown characters become one unknown token
  std::optional<std::string> unknown;
};

// The working memory of encode_word(); reused for each word to avoid allocations.
struct MergeScratch {
  std::vector<TokenId> ids;
  std::vector<std::uint32_t> ranks, previous, next;
  std::vector<TokenId> merged;
  std::vector<std::uint64_t> heap;
  ShortWord few;
};

class Bpe {
 public:
  explicit Bpe(const BpeParts& parts);

  // Leaves the tokens of the word in scratch.ids.
  void encode_word(std::string_view word, MergeScratch& scratch) const;
  // Does the same for several words in turns: while the memory for one word's next merges is being fetched, the others
  // continue. At most kMostWords words; requires encodes_words().
  static constexpr std::size_t kMostWords = 16;
  void encode_words(std::span<ShortWord> words) const;
  [[nodiscard]] bool encodes_words() const { return all_bytes_; }
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view token) const;  // `token` is spelled as in the file
  [[nodiscard]] std::size_t ids() const { return bytes_of_id_.size(); }      // the largest id + 1
  [[nodiscard]] std::size_t tokens() const { return ids_.size(); }
  // The bytes of a token: in a byte-level vocabulary, the bytes that its letters represent; otherwise its spelling. Nothing for
  // an id without a token.
  [[nodiscard]] const std::optional<std::string>& bytes_of(TokenId id) const { return bytes_of_id_[id]; }
  // The token's bytes in a decoded text: unless the vocabulary is byte-level, <0xNN> is that byte.
  [[nodiscard]] std::string decoded(TokenId id) const;
  [[nodiscard]] bool byte_level() const { return byte_level_; }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  using Ids = std::unordered_map<std::string, TokenId, Hash, std::equal_to<>>;

  [[nodiscard]] std::size_t split(std::string_view word, TokenId* out) const;
  [[nodiscard]] std::optional<TokenId> token_of(std::string_view word, std::uint64_t hash) const;
  void split_characters(std::string_view word, std::vector<TokenId>& ids) const;
  void merge_many(MergeScratch& scratch) const;
  void add_merges(const BpeParts& parts);

  bool byte_level_, byte_fallback_, ignore_merges_, fuse_unknown_;
  std::optional<TokenId> unknown_;
  Ids ids_;          // by spelling
  WordTable words_;  // for ignore_merges_
  std::vector<std::optional<std::string>> bytes_of_id_;
  std::array<std::optional<TokenId>, 256> fallback_{};
  std::array<TokenId, 256> of_byte_{};  // if all_bytes_: the token of each byte
  bool all_bytes_ = false;
  MergeTable merges_;
  CharacterTokens characters_;
};

}  // namespace terrace::lm
