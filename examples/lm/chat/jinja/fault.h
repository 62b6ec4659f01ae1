// The reason why a template cannot be used, or cannot write a conversation.
//
// Threads: any; values. Errors: a Fault has neither template nor line; ChatTemplate adds both.
#pragma once

#include <string>
#include <utility>

namespace terrace::lm::jinja {

struct Fault {
  std::string what, mend;
};

// For an error in the template, or a conversation that the template does not support.
[[noreturn]] inline void fail(std::string what) {
  throw Fault{std::move(what), "correct the template, or the conversation that it does not fit"};
}
// For a part of Jinja or Python that terrace does not have.
[[noreturn]] inline void unsupported(const std::string& what) {
  throw Fault{what + " is not supported",
              "docs/guides/chat.md lists what is; write the template without it, as chat_template.jinja beside the tokenizer"};
}
[[noreturn]] inline void too_much(std::string what) {
  throw Fault{std::move(what), "correct the template: one that writes conversations needs far less"};
}

}  // namespace terrace::lm::jinja
