// A line of a JSONL file as something to learn from: a conversation, or a text with its continuation.
//
//   {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}   and, for a chat template,
//   "tools",
//                                                              "documents" and "chat_template_kwargs"
//   {"prompt": [messages], "completion": [messages]}          TRL; only answers of the completion are learned
//   {"conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}]}   ShareGPT; before them "system", a
//   text
//   {"prompt": "…", "completion": "…"}                        a text and its continuation, without a template
//   {"prompt": "…", "response": "…"}                          a question and its answer
//   {"instruction": "…", "input": "…", "output": "…"}         Alpaca; "input" may be absent or empty, and before them may be
//                                                             "system", a text, and "history", pairs of question and answer;
//                                                             Dolly calls them "context" and "response"
//
// An answer is not learned if its message says so in one of the usual ways: "weight", "train", "training", "trainable",
// "learn", "loss", "loss_mask", "step_loss_mask" of 0 or false, "masked" of 1 or true. Other keys are ignored.
// Threads: any; values.
// Errors:  Error with only the reason, and in a second line what to do; the caller adds file and line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace terrace::lm {

inline constexpr std::string_view kAnswering = "assistant";  // the role whose messages are learned, unless they say otherwise

struct Message {
  std::string role, content;
  bool learned = false;               // an answer that the model learns to write
  nlohmann::ordered_json given = {};  // all of it, for a chat template; null: there is no more than role and content
  std::string not_plain = {};         // why `content` is not the whole message, and what to do; empty: it is
};

struct Conversation {
  std::vector<Message> messages;                      // at least one is learned; or, if there are none:
  std::string prompt, completion;                     // texts as they are, without a template
  nlohmann::ordered_json tools = {}, documents = {};  // of a chat template; null: none
  nlohmann::ordered_json variables = {};              // of the template's own; an object or null
};

Conversation parse_conversation(std::string_view line);

}  // namespace terrace::lm
