// Turns conversations into tokens, for training and for generating, and marks the tokens that the model learns.
//
// If the tokenizer's directory has a chat template (tokenizer_config.json or chat_template.jinja), the template writes the
// messages (chat_template.h), and answers.h finds the learned parts. Without a template a message is
//
//   <|im_start|>ROLE\nCONTENT<|im_end|>\n
//
// as in ChatML. If the tokenizer has no token <|im_end|>, its end-of-text token is used.
//
// Owner:   the caller; borrows the tokenizer. Threads: any.
// Errors:  Error(ErrorKind::refused) if the tokenizer has no token to end an answer, if terrace cannot read the template, if
//          the template refuses a conversation, and if a conversation needs a template but there is none.
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

// A part of a text: whether it is an answer, which a model would generate, and whether the model learns it.
struct Part {
  std::string text;
  bool answer = false, learned = answer;
};

class ChatFormat {
 public:
  // `now`: the time for a template's strftime_now, in seconds since 1970; absent: the function is undefined.
  ChatFormat(const Tokenizer& tokenizer, const TokenizerConfig& config, std::optional<std::int64_t> now = {});

  // One text, or several if the template writes earlier answers differently from the last one (answers.h).
  [[nodiscard]] std::vector<std::vector<Part>> parts_of(const Conversation& conversation) const;
  // What the user should know about the template; empty if nothing.
  [[nodiscard]] std::string warning() const;
  [[nodiscard]] const std::string& end() const { return end_; }  // the end token of an answer, as text; empty if there is none

  // Learned and other parts are encoded separately, because an answer is generated after the tokens of its prompt.
  struct Encoded {
    std::vector<TokenId> tokens;
    std::vector<bool> learned;  // marks the tokens that are targets, at least one
  };
  [[nodiscard]] std::vector<Encoded> encode(const Conversation& conversation, Encoding& with) const;
  // Everything before the next answer.
  [[nodiscard]] std::vector<TokenId> encode_prompt(const std::vector<Message>& messages) const;

 private:
  [[nodiscard]] Encoded encode(std::vector<Part> parts, Encoding& with) const;
  [[nodiscard]] std::vector<Part> as_chatml(const std::vector<Message>& messages) const;

  const Tokenizer* tokenizer_;
  std::optional<ChatTemplate> template_;
  AddedTokens special_;  // with their indexes in the list
  std::string end_, end_of_text_;
};

}  // namespace terrace::lm
