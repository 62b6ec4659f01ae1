// A model's own chat template: the subset of Jinja that the templates of Hugging Face's library use (docs/guides/chat.md lists
// it), with the library's settings: trim_blocks, lstrip_blocks, loop controls and {% generation %}.
//
// A template is untrusted text. It can only read the values passed to it and write a text. Its steps, depth and memory are
// limited (jinja/work.h).
//
// Owner:   the caller. Threads: any.
// Errors:  Error(ErrorKind::refused) with the template, the line, the fault and its remedy: from the constructor for a template
//          that terrace cannot read, from write() for one that fails or refuses the conversation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/lm/chat/jinja/evaluator.h>
#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm {

// The input of a template for one conversation.
struct TemplateInput {
  std::vector<jinja::Value> messages;
  std::vector<std::pair<std::string, jinja::Value>> more;  // tools, documents, and the template's own variables
};
// Changes a message as the library does: keys that are null are left out, and reasoning is stored under all of its names.
jinja::Value template_message(const nlohmann::ordered_json& message);

class ChatTemplate {
 public:
  using Span = jinja::Span;
  // `name`: the template's file; `tokens`: variables such as bos_token; `now`: the time for strftime_now, in seconds since
  // 1970.
  ChatTemplate(std::string_view source, std::string name, std::map<std::string, std::string> tokens,
               std::optional<std::int64_t> now);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  struct Written {
    std::string text;
    std::vector<Span> generated;  // the {% generation %} blocks
  };
  // Writes the first `messages` messages of a conversation and, with `for_answer`, the prompt of the next answer
  // (add_generation_prompt).
  [[nodiscard]] Written write(const TemplateInput& input, std::size_t messages, bool for_answer) const;
  [[nodiscard]] bool marks_answers() const;  // whether it has {% generation %}
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  struct Tree;
  std::string name_;
  std::map<std::string, std::string> tokens_;
  std::optional<std::int64_t> now_;
  std::unique_ptr<const Tree> tree_;
};

}  // namespace terrace::lm
