// How conversations become tokens, for training and for generating: each message between marks, of which the model learns the
// answers.
//
// Without a template a message is
//
//   <|im_start|>ROLE\nCONTENT<|im_end|>\n
//
// as ChatML has it. If the tokenizer has no token <|im_end|>, its end-of-text token stands there.
//
// Owner:   the caller; borrows the tokenizer. Threads: any.
// Errors:  Error(Exit::usage) for a tokenizer that has no token to end an answer.
#pragma once

#include <string>
#include <vector>

#include <terrace/examples/lm/chat/conversation.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/tokenizer_config.h>

namespace terrace::lm {

// Part of a text, and whether the model learns to write it.
struct Part {
  std::string text;
  bool answer = false;
};

class ChatFormat {
 public:
  ChatFormat(const Tokenizer& tokenizer, const TokenizerConfig& config);

  [[nodiscard]] std::vector<Part> parts_of(const Conversation& conversation) const;
  // A model's own template is not used: what the user should know of it. Empty: there is none.
  [[nodiscard]] std::string warning() const;
  [[nodiscard]] const std::string& end() const { return end_; }  // of an answer; the spelling of a token

  // What is learned and what is not are encoded apart, because an answer is generated behind the tokens of its prompt.
  struct Encoded {
    std::vector<TokenId> tokens;
    std::vector<bool> learned;  // tokens that are targets
  };
  [[nodiscard]] Encoded encode(const Conversation& conversation, Encoding& with) const;
  // All that stands before the next answer.
  [[nodiscard]] std::vector<TokenId> encode_prompt(const std::vector<Message>& messages) const;

 private:
  [[nodiscard]] Encoded encode(std::vector<Part> parts, Encoding& with) const;

  const Tokenizer* tokenizer_;
  std::string end_, end_of_text_;
  std::string template_file_;  // which is not used
};

}  // namespace terrace::lm
