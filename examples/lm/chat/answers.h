// Which of the text that a chat template writes the model learns: what it would have to generate.
//
// A template with {% generation %} blocks says so itself. Otherwise an answer is what the template writes behind its own prompt
// for it: the text for the messages before it, with add_generation_prompt, must begin the text for the messages up to it. The
// answer ends with the token that ends it, and what stands behind that one depends on what comes next. A conversation that
// begins with an answer does not learn that one, because nothing asks for it. An answer whose message is marked as not to be
// learned is left out, too. Its {% generation %} blocks are those that appear when its message is added to the ones before it.
//
// Some templates write earlier answers in another way than the last one, for example without their reasoning. A model never
// generates that, so such a conversation becomes several documents: in each, the answers that are generated just so are
// learned.
//
// Threads: any. Errors: Error(Exit::usage) of the template, and for one whose answers do not follow its prompt.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/chat/chat_template.h>
#include <terrace/examples/lm/chat/conversation.h>
#include <terrace/examples/lm/tokenizer/added_tokens.h>

namespace terrace::lm {

struct LearnedText {
  std::string text;
  std::vector<jinja::Span> answers;  // in order, apart from one another
};

// `special`: the tokenizer's special tokens. `messages`: those of the input.
std::vector<LearnedText> learned_texts(const ChatTemplate& by, const TemplateInput& input, std::span<const Message> messages,
                                       const AddedTokens& special);

// The special token that the template writes behind an answer; empty if there is none, or if it refuses a question and an
// answer.
std::string end_of_answers(const ChatTemplate& by, const AddedTokens& special);

}  // namespace terrace::lm
