// A model's own chat template: the part of Jinja that the templates of Hugging Face's library use (docs/guides/chat.md lists
// it), in the environment that the library gives them: trim_blocks, lstrip_blocks, loop controls and {% generation %}.
//
// A template is foreign text. It reads the values that it is given and writes a text, and has no way to anything else. Its
// steps, its depth and its memory are limited (jinja/work.h).
//
// Owner:   the caller. Threads: any.
// Errors:  Error(Exit::usage) that names the template, the line, what is wrong and what to do: from the constructor for a
// template
//          that terrace cannot read, from write() for one that fails, and for one that refuses the conversation.
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

// What a template is given of a conversation.
struct TemplateInput {
  std::vector<jinja::Value> messages;
  std::vector<std::pair<std::string, jinja::Value>> more;  // tools, documents, and variables of the template's own
};
// As the library gives it: keys that are null are left out, and reasoning has all of its names.
jinja::Value template_message(const nlohmann::ordered_json& message);

class ChatTemplate {
 public:
  using Span = jinja::Span;
  // `name`: the file that it is in; `tokens`: bos_token and the like, which are variables; `now`: the time of strftime_now, in
  // seconds since 1970.
  ChatTemplate(std::string_view source, std::string name, std::map<std::string, std::string> tokens,
               std::optional<std::int64_t> now);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  struct Written {
    std::string text;
    std::vector<Span> generated;  // the {% generation %} blocks
  };
  // The first `messages` of a conversation, and with `for_answer` what stands before the next answer (add_generation_prompt).
  [[nodiscard]] Written write(const TemplateInput& input, std::size_t messages, bool for_answer) const;
  [[nodiscard]] bool marks_answers() const;  // it has {% generation %}
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  struct Tree;
  std::string name_;
  std::map<std::string, std::string> tokens_;
  std::optional<std::int64_t> now_;
  std::unique_ptr<const Tree> tree_;
};

}  // namespace terrace::lm
