// Decodes a text token by token, in time that does not depend on how long the text is. What add() gives is final: the bytes of
// a character that later tokens complete are held back, and so are the last ones if the decoder strips the end of a text.
// All that add() and finish() give is what Tokenizer::decode() gives for all ids.
//
// Owner:   the caller; borrows the tokenizer. Threads: one at a time.
// Errors:  those of Tokenizer::decode().
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <terrace/examples/lm/tokenizer/tokenizer.h>

namespace terrace::lm {

// How many bytes at the end of the text may be the beginning of a character: 0 to 3.
std::size_t unfinished_character(std::string_view text);

// Holds back the bytes of a character until it is complete. Bytes that begin no character pass.
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
  std::string finish();  // what was held back; the stream then begins a new text

 private:
  void strip_front(bool at_end);

  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  std::string text_;  // behind what was given
  std::size_t front_left_ = 0;
  WholeCharacters whole_;
};

}  // namespace terrace::lm
