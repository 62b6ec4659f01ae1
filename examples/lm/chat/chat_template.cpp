#include <terrace/examples/lm/chat/chat_template.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/chat/jinja/json.h>
#include <terrace/examples/lm/chat/jinja/lexer.h>
#include <terrace/examples/lm/chat/jinja/parser.h>

namespace terrace::lm {
namespace {

constexpr std::size_t kMostSourceBytes = std::size_t{256} << 10;  // the longest known template has 20 KB

[[noreturn]] void refuse_template(const std::string& name, int line, const jinja::Fault& fault) {
  throw base::Refused(fmt::format("the chat template {}, line {}: {}\n  {}", name, line, fault.what, fault.mend));
}

}  // namespace

struct ChatTemplate::Tree {
  jinja::Parsed parsed;
};

jinja::Value template_message(const nlohmann::ordered_json& message) {
  constexpr std::array<const char*, 3> kReasoning = {"reasoning_content", "thinking", "reasoning"};
  auto plain = nlohmann::ordered_json::object();
  const auto named =
      std::ranges::find_if(kReasoning, [&](const char* key) { return message.contains(key) && !message[key].is_null(); });
  if (named != kReasoning.end()) plain["thinking"] = message[*named];
  for (const auto& [key, value] : message.items())
    if (!value.is_null()) plain[key] = value;
  if (named != kReasoning.end()) plain["reasoning_content"] = message[*named];
  return jinja::from_json(plain);
}

ChatTemplate::ChatTemplate(std::string_view source, std::string name, std::map<std::string, std::string> tokens,
                           std::optional<std::int64_t> now)
    : name_(std::move(name)), tokens_(std::move(tokens)), now_(now) {
  if (source.size() > kMostSourceBytes)
    throw base::Refused(
        fmt::format("the chat template {} has more than {} bytes\n  give a shorter one", name_, kMostSourceBytes));
  if (!is_utf8(source)) throw base::Refused(fmt::format("the chat template {} is not UTF-8\n  save it as UTF-8", name_));
  try {
    tree_ = std::make_unique<const Tree>(Tree{jinja::parse(source)});
  } catch (const jinja::SyntaxFault& fault) {
    refuse_template(name_, fault.line, fault);
  }
}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::marks_answers() const { return tree_->parsed.marks_answers; }

ChatTemplate::Written ChatTemplate::write(const TemplateInput& input, std::size_t messages, bool for_answer) const {
  jinja::Runtime runtime;
  runtime.now = now_;
  std::vector<std::pair<std::string, jinja::Value>> globals{{"tools", jinja::Value(jinja::None())},
                                                            {"documents", jinja::Value(jinja::None())}};
  for (const auto& [key, token] : tokens_) globals.emplace_back(key, jinja::text_value(token));
  globals.insert(globals.end(), input.more.begin(), input.more.end());
  const auto end = input.messages.begin() + static_cast<std::ptrdiff_t>(std::min(messages, input.messages.size()));
  globals.emplace_back("messages", jinja::list_value({input.messages.begin(), end}));
  globals.emplace_back("add_generation_prompt", jinja::Value(for_answer));
  jinja::Evaluator evaluator(runtime, std::move(globals));
  try {
    Written out;
    out.text = evaluator.write(tree_->parsed.body);
    out.generated = evaluator.generated();
    return out;
  } catch (const jinja::Fault& fault) {
    refuse_template(name_, evaluator.line(), fault);
  }
}

}  // namespace terrace::lm
