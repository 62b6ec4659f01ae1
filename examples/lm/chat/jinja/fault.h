// Why a template cannot be used, or cannot write a conversation.
//
// Threads: any; values. Errors: a Fault knows neither template nor line: ChatTemplate adds both.
#pragma once

#include <string>
#include <utility>

namespace terrace::lm::jinja {

struct Fault {
  std::string what, mend;
};

// A mistake of the template, or a conversation that it was not written for.
[[noreturn]] inline void fail(std::string what) {
  throw Fault{std::move(what), "correct the template, or the conversation that it does not fit"};
}
// Part of Jinja or of Python that terrace does not have.
[[noreturn]] inline void unsupported(const std::string& what) {
  throw Fault{what + " is not supported",
              "docs/guides/chat.md lists what is; write the template without it, as chat_template.jinja beside the tokenizer"};
}
[[noreturn]] inline void too_much(std::string what) {
  throw Fault{std::move(what), "correct the template: one that writes conversations needs far less"};
}

}  // namespace terrace::lm::jinja
