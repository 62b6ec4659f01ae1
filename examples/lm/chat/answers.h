// Decides which parts of a chat template's text the model learns: those that it would have to generate.
//
// A template with {% generation %} blocks marks them itself. Otherwise an answer is what the template adds after its own
// prompt: the text of the previous messages, written with add_generation_prompt, must be the beginning of the text that
// includes the answer. The answer ends with its end token; what follows that token depends on the next message. If a
// conversation begins with an answer, this answer is not learned, because it has no prompt. An answer whose message is marked
// as not to be learned is also left out. Its {% generation %} blocks are those that appear when its message is added to the
// previous ones.
//
// Some templates write an earlier answer differently from the last one, for example without its reasoning. A model never
// generates the earlier form. So such a conversation becomes several documents, and each learns the answers that it contains in
// the generated form.
//
// Threads: any. Errors: Error(ErrorKind::refused) from the template, or if its answers do not follow its prompt.
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
  std::vector<jinja::Span> answers;  // in order, without overlap
};

// `special`: the tokenizer's special tokens. `messages`: the messages in `input`.
std::vector<LearnedText> learned_texts(const ChatTemplate& by, const TemplateInput& input, std::span<const Message> messages,
                                       const AddedTokens& special);

// The special token that the template writes after an answer; empty if it writes none, or if it refuses the test conversation
// of a question and an answer.
std::string end_of_answers(const ChatTemplate& by, const AddedTokens& special);

}  // namespace terrace::lm
