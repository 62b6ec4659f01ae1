// One line of a JSONL file as training data: a conversation, or a text with its continuation.
//
//   {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
//                                                             for a chat template also "tools", "documents" and
//                                                             "chat_template_kwargs"
//   {"prompt": [messages], "completion": [messages]}          TRL; only answers of the completion are learned
//   {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}
//                                                             ShareGPT; may also have "system", the text of the first message
//   {"prompt": "…", "completion": "…"}                        a text and its continuation, without a template
//   {"prompt": "…", "response": "…"}                          a question and its answer
//   {"instruction": "…", "input": "…", "output": "…"}         Alpaca; "input" may be absent or empty; may also have "system",
//                                                             a text, and "history", pairs of question and answer; Dolly's
//                                                             names are "context" and "response"
//
// An answer is not learned if its message has one of the usual marks: 0 or false for "weight", "train", "training",
// "trainable", "learn", "loss", "loss_mask" or "step_loss_mask"; 1 or true for "masked". Other keys are ignored.
// Threads: any; values.
// Errors:  Error with only the reason and, on a second line, the remedy; the caller adds file and line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace terrace::lm {

inline constexpr std::string_view kAnswering = "assistant";  // the role whose messages are learned by default

struct Message {
  std::string role, content;
  bool learned = false;               // an answer that the model learns to write
  nlohmann::ordered_json given = {};  // the whole message, for a chat template; null: it only has role and content
  std::string not_plain = {};         // why `content` is not the whole message, with the remedy; empty: it is
};

struct Conversation {
  std::vector<Message> messages;                      // at least one of them is learned; if there are none,
  std::string prompt, completion;                     // texts to use as they are, without a template
  nlohmann::ordered_json tools = {}, documents = {};  // for a chat template; null: none
  nlohmann::ordered_json variables = {};              // the template's own variables; an object or null
};

Conversation parse_conversation(std::string_view line);

}  // namespace terrace::lm
