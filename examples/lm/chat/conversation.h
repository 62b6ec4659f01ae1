// A line of a JSONL file as something to learn from: a conversation, or a text with its continuation.
//
//   {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
//   {"prompt": "…", "completion": "…"}
//   {"instruction": "…", "input": "…", "output": "…"}         Alpaca; "input" may be absent or empty
//
// Other keys are ignored. Threads: any; values.
// Errors:  Error with only the reason, and in a second line what to do; the caller adds file and line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace::lm {

inline constexpr std::string_view kAnswering = "assistant";  // the role whose messages are learned

struct Message {
  std::string role, content;
};

struct Conversation {
  std::vector<Message> messages;   // at least one of the assistant; or, if there are none:
  std::string prompt, completion;  // texts as they are, without a template
};

Conversation parse_conversation(std::string_view line);

}  // namespace terrace::lm
