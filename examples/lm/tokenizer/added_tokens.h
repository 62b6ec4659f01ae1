// Tokens that are searched in a text before it is cut into words: special ones such as <|endoftext|>, and others that a file
// adds.
//
// Owner:   the tokenizer. Threads: any. Errors: none.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool single_word = false;   // only matches if no letter, number or mark is beside it
  bool strips_left = false;   // includes the white space before it
  bool strips_right = false;  // includes the white space after it
  bool normalized = true;     // it is searched in the normalised text
  bool special = false;       // decoding can skip it
  friend bool operator==(const AddedToken&, const AddedToken&) = default;
};

// True if it may match across a space at which a text is cut (cut_at_space()), or depends on the characters beside a cut.
bool joins_a_cut(const AddedToken& token);

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Calls take_text(part) and take_token(id) in the order of the text. If several tokens begin at the same place, the longest
  // wins.
  void cut(std::string_view text, const std::function<void(std::string_view)>& take_text,
           const std::function<void(TokenId)>& take_token) const;
  // Whether a token covers this place of the text or ends there, or could do so if the text continued.
  [[nodiscard]] bool stands_over(std::string_view text, std::size_t at) const;
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  [[nodiscard]] const std::vector<AddedToken>& all() const { return tokens_; }

 private:
  struct Found {
    const AddedToken* token = nullptr;
    std::size_t begin = 0;
  };
  [[nodiscard]] Found find(std::string_view text, std::size_t from) const;

  std::vector<AddedToken> tokens_;
  std::array<std::vector<std::uint32_t>, 256> by_first_;  // longest first
  std::array<std::bitset<257>, 256> second_;              // second bytes that follow a first one; 256: a token of one byte
  int only_first_ = -1;                                   // the first byte of all tokens; -1: they have different ones
};

}  // namespace terrace::lm
