// How conversations become tokens, for training and for generating, and of which tokens the model learns to write them.
//
// If the tokenizer's directory has a chat template (tokenizer_config.json or chat_template.jinja), the template writes the
// messages (chat_template.h), and answers.h finds what is learned. Without one a message is
//
//   <|im_start|>ROLE\nCONTENT<|im_end|>\n
//
// as ChatML has it. If the tokenizer has no token <|im_end|>, its end-of-text token stands there.
//
// Owner:   the caller; borrows the tokenizer. Threads: any.
// Errors:  Error(Exit::usage) for a tokenizer that has no token to end an answer, for a template that terrace cannot read or
// that
//          refuses a conversation, and for a conversation that needs a template where there is none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/lm/chat/chat_template.h>
#include <terrace/examples/lm/chat/conversation.h>
#include <terrace/examples/lm/tokenizer/added_tokens.h>
#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/tokenizer_config.h>

namespace terrace::lm {

// Part of a text, whether a model would write it, and whether it learns to.
struct Part {
  std::string text;
  bool answer = false, learned = answer;
};

class ChatFormat {
 public:
  // `now`: what a template's strftime_now tells, in seconds since 1970; absent: there is no such function.
  ChatFormat(const Tokenizer& tokenizer, const TokenizerConfig& config, std::optional<std::int64_t> now = {});

  // One text, or several where the template writes earlier answers in another way than the last one (answers.h).
  [[nodiscard]] std::vector<std::vector<Part>> parts_of(const Conversation& conversation) const;
  // What the user should know of the template. Empty: nothing.
  [[nodiscard]] std::string warning() const;
  [[nodiscard]] const std::string& end() const {
    return end_;
  }  // of an answer; the spelling of a token, empty if there is none

  // What is learned and what is not are encoded apart, because an answer is generated behind the tokens of its prompt.
  struct Encoded {
    std::vector<TokenId> tokens;
    std::vector<bool> learned;  // tokens that are targets, at least one
  };
  [[nodiscard]] std::vector<Encoded> encode(const Conversation& conversation, Encoding& with) const;
  // All that stands before the next answer.
  [[nodiscard]] std::vector<TokenId> encode_prompt(const std::vector<Message>& messages) const;

 private:
  [[nodiscard]] Encoded encode(std::vector<Part> parts, Encoding& with) const;
  [[nodiscard]] std::vector<Part> as_chatml(const std::vector<Message>& messages) const;

  const Tokenizer* tokenizer_;
  std::optional<ChatTemplate> template_;
  AddedTokens special_;  // numbered as in the list
  std::string end_, end_of_text_;
};

}  // namespace terrace::lm
