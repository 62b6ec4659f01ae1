// Byte-pair encoding of one word: its bytes or characters, then one merge after the other, the one of the lowest rank and of
// those the leftmost first.
//
// Owner:   the tokenizer. Threads: encode_word() from any, each with its own MergeScratch.
// Errors:  Error(Exit::corrupt) from the constructor for a vocabulary or merges that contradict each other.
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
  std::vector<std::pair<std::string, TokenId>> vocabulary;  // tokens as the file spells them
  std::vector<std::pair<std::string, std::string>> merges;  // in order of preference
  bool byte_level = false;     // tokens are spelled in letters that stand for bytes (byte_letters.h)
  bool byte_fallback = false;  // a character that is no token becomes tokens <0xNN>
  bool ignore_merges = false;  // a word that is a token is not made of merges
  bool fuse_unknown = false;   // neighbouring unknown characters are one unknown token
  std::optional<std::string> unknown;
};

// What encode_word() computes in; it is kept from word to word because it allocates.
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

  // The tokens of the word are in scratch.ids afterwards.
  void encode_word(std::string_view word, MergeScratch& scratch) const;
  // The same of several words, in turns: while the memory of one word's next merges is on its way, the others go on.
  // At most kMostWords; requires encodes_words().
  static constexpr std::size_t kMostWords = 16;
  void encode_words(std::span<ShortWord> words) const;
  [[nodiscard]] bool encodes_words() const { return all_bytes_; }
  [[nodiscard]] std::optional<TokenId> id_of(std::string_view token) const;  // spelled as in the file
  [[nodiscard]] std::size_t ids() const { return bytes_of_id_.size(); }      // the largest id + 1
  [[nodiscard]] std::size_t tokens() const { return ids_.size(); }
  // The token's bytes: of a byte-level vocabulary those that its letters stand for, else its spelling. Nothing for an id that
  // no token has.
  [[nodiscard]] const std::optional<std::string>& bytes_of(TokenId id) const { return bytes_of_id_[id]; }
  // Its bytes in a decoded text: of other than byte-level vocabularies <0xNN> is that byte.
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
  std::array<TokenId, 256> of_byte_{};  // if all_bytes_
  bool all_bytes_ = false;
  MergeTable merges_;
  CharacterTokens characters_;
};

}  // namespace terrace::lm
