// Tokens that are found in a text before it is cut into words: special ones such as <|endoftext|>, and others that a file adds.
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
  bool single_word = false;   // only where no letter, number or mark stands beside it
  bool strips_left = false;   // takes the white space before it
  bool strips_right = false;  // and after it
  bool normalized = true;     // it is looked for after normalisation
  bool special = false;       // decoding can leave it out
  friend bool operator==(const AddedToken&, const AddedToken&) = default;
};

// Whether it may be found over a space where a text is cut (cut_at_space()), or takes what stands at a cut.
bool joins_a_cut(const AddedToken& token);

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // Calls text(part) and token(id) in the order of the text. Of tokens that begin at one place the longest one counts.
  void cut(std::string_view text, const std::function<void(std::string_view)>& take_text,
           const std::function<void(TokenId)>& take_token) const;
  // Whether one of them stands over a place of a text or ends there, or may, if the text goes on.
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
  std::array<std::bitset<257>, 256> second_;              // bytes that stand after a first one; 256: nothing need
  int only_first_ = -1;                                   // the first byte of all tokens; -1: there are several
};

}  // namespace terrace::lm
