// Why a template cannot be used, or cannot write a conversation; and the work that a template may cause, so that one that loops
// for ever, or doubles a text again and again, ends with an error.
//
// Threads: any; values. Errors: a Fault knows neither template nor line: ChatTemplate adds both.
#pragma once

#include <cstddef>
#include <cstdint>
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
              "docs/chat.md lists what is; write the template without it, as chat_template.jinja beside the tokenizer"};
}
[[noreturn]] inline void too_much(std::string what) {
  throw Fault{std::move(what), "correct the template: one that writes conversations needs far less"};
}

inline constexpr std::uint64_t kMostSteps = 5'000'000;            // about half a second
inline constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of a text; conversation lines have the same limit
inline constexpr std::uint64_t kBytesOfAStep = 64;                // so all texts together have at most 305 MiB
inline constexpr int kMostNesting = 200;                          // of expressions, statements and values in one another
inline constexpr int kMostDepth = 400;                            // of the evaluation: calls of macros, and what is in them
inline constexpr std::int64_t kMostOfRange = 100'000;             // as Jinja's sandbox has it

class Work {
 public:
  void take(std::uint64_t steps) {
    if (steps > left_) too_much("it takes more than 5 million steps");
    left_ -= steps;
  }
  // Before a text of so many bytes is made.
  void take_text(std::size_t bytes) {
    if (bytes > kMostBytes) too_much("it makes a text of more than 64 MiB");
    take(1 + bytes / kBytesOfAStep);
  }

 private:
  std::uint64_t left_ = kMostSteps;
};

}  // namespace terrace::lm::jinja
