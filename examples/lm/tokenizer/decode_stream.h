// Decodes a text token by token, in time that does not depend on the length of the text. The output of add() is final: it holds
// back the bytes of an unfinished character, and the last bytes if the decoder strips the end of a text. The outputs of all
// add() calls and finish() together are the same as from Tokenizer::decode() for all ids.
//
// Owner:   the caller; borrows the tokenizer. Threads: one at a time.
// Errors:  those of Tokenizer::decode().
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <terrace/examples/lm/tokenizer/tokenizer.h>

namespace terrace::lm {

// The number of bytes at the end of the text that may begin an unfinished character: 0 to 3.
std::size_t unfinished_character(std::string_view text);

// Holds back the bytes of a character until it is complete. Invalid bytes pass immediately.
class WholeCharacters {
 public:
  std::string add(std::string_view bytes);
  std::string finish();

 private:
  std::string held_;
};

class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, DecodeOptions options = {});

  std::string add(TokenId id);
  std::string finish();  // returns the rest; then a new text may begin

 private:
  void strip_front(bool at_end);

  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::string text_;  // bytes that are held back
  std::size_t front_left_ = 0;
  WholeCharacters whole_;
};

}  // namespace terrace::lm
