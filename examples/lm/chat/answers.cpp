#include <terrace/examples/lm/chat/answers.h>

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/chat/jinja/code_points.h>

namespace terrace::lm {
namespace {

using jinja::Span;

std::vector<Span> tokens_in(std::string_view text, const AddedTokens& special) {
  std::vector<Span> out;
  std::size_t at = 0;
  special.cut(
      text, [&](std::string_view part) { at += part.size(); },
      [&](TokenId i) {
        const auto begin = at;
        at += special.all()[i].content.size();
        out.push_back({begin, at});
      });
  return out;
}

std::size_t common_bytes(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// The end must not be inside a token: two different tokens may begin with the same letters.
std::size_t before_cut_token(std::size_t at, const std::vector<Span>& tokens) {
  for (const auto& [begin, end] : tokens)
    if (begin < at && at < end) return begin;
  return at;
}

// The text that a template writes up to and including an answer, and the position of the answer in it.
struct Answer {
  std::string text;
  Span span;
  bool has_end = false;  // a special token ends it
};

Answer answer_of(const ChatTemplate& by, const TemplateInput& input, std::size_t message, const AddedTokens& special) {
  const auto prompt = by.write(input, message, true).text;
  Answer out{.text = by.write(input, message + 1, false).text, .span = {}};
  if (!out.text.starts_with(prompt)) {
    const auto at = common_bytes(out.text, prompt);
    throw base::Refused(fmt::format(
        "the chat template {} does not write message {}, an answer, behind its prompt for answers: the prompt "
        "goes on with \"{}\", and the text with the answer with \"{}\"\n  set {{% generation %}} and {{% endgeneration "
        "%}} around what is to be learned, in a chat_template.jinja beside the tokenizer, or give the texts "
        "as \"prompt\" and \"completion\"",
        by.name(), message + 1, base::printable(std::string_view(prompt).substr(at), 40),
        base::printable(std::string_view(out.text).substr(at), 40)));
  }
  const auto next = by.write(input, message + 1, true).text;
  const auto tokens = tokens_in(out.text, special);
  auto end = before_cut_token(before_cut_token(common_bytes(out.text, next), tokens), tokens_in(next, special));
  if (end <= prompt.size()) end = out.text.size();
  for (const auto& token : tokens) {
    if (token.begin < prompt.size() || token.end > end) continue;
    if (!jinja::stripped(std::string_view(out.text).substr(token.end, end - token.end), true, false).empty()) continue;
    end = token.end;
    out.has_end = true;
    break;
  }
  out.span = {prompt.size(), end};
  return out;
}

// Removes the blocks of answers that are not to be learned from `marked`.
void leave_out_unlearned(const ChatTemplate& by, const TemplateInput& input, std::span<const Message> messages,
                         std::vector<Span>& marked) {
  const auto all = marked;
  const auto blocks_until = [&](std::size_t end) {
    if (end == 0) return std::vector<Span>();
    return end == messages.size() ? all : by.write(input, end, false).generated;
  };
  for (auto i = messages.size(); i-- > 0;) {
    if (messages[i].role != kAnswering || messages[i].learned) continue;
    const auto with = blocks_until(i + 1);
    const auto begin = blocks_until(i).size(), end = with.size();
    bool same = begin <= end && end <= marked.size();  // a template may mark other answers when more messages follow
    for (auto block = begin; same && block < end; ++block) same = with[block].begin == all[block].begin;
    if (!same)
      throw base::Refused(
          fmt::format("the chat template {} does not say which {{% generation %}} blocks are those of message {}, which is "
                      "not to be learned\n  remove the message's mark, or the line",
                      by.name(), i + 1));
    marked.erase(marked.begin() + static_cast<std::ptrdiff_t>(begin), marked.begin() + static_cast<std::ptrdiff_t>(end));
  }
}

}  // namespace

std::vector<LearnedText> learned_texts(const ChatTemplate& by, const TemplateInput& input, std::span<const Message> messages,
                                       const AddedTokens& special) {
  std::vector<LearnedText> out;
  if (by.marks_answers()) {
    auto written = by.write(input, input.messages.size(), false);
    leave_out_unlearned(by, input, messages, written.generated);
    std::erase_if(written.generated, [](const Span& span) { return span.begin == span.end; });
    out.push_back({std::move(written.text), std::move(written.generated)});
    return out;
  }
  std::vector<Answer> waiting;
  for (std::size_t i = 1; i < messages.size(); ++i)  // a first message has no prompt
    if (messages[i].learned) waiting.push_back(answer_of(by, input, i, special));
  while (!waiting.empty()) {
    LearnedText document{waiting.back().text, {}};
    std::vector<Answer> others;
    std::size_t done = 0;
    for (auto& answer : waiting) {
      const auto upto = std::string_view(answer.text).substr(0, answer.span.end);
      if (answer.span.begin >= done && document.text.starts_with(upto)) {
        document.answers.push_back(answer.span);
        done = answer.span.end;
      } else {
        others.push_back(std::move(answer));
      }
    }
    out.push_back(std::move(document));
    waiting = std::move(others);
  }
  std::ranges::reverse(out);
  return out;
}

std::string end_of_answers(const ChatTemplate& by, const AddedTokens& special) try {
  TemplateInput input;
  for (const char* const role : {"user", "assistant"})
    input.messages.push_back(template_message({{"role", role}, {"content", std::string(role) + " text"}}));
  const auto written = by.write(input, 2, false).text;
  const auto content = written.rfind("assistant text");
  if (content == std::string::npos) return {};
  for (const auto& [begin, end] : tokens_in(written, special))
    if (begin > content) return written.substr(begin, end - begin);
  return {};
} catch (const Error&) {
  return {};
}

}  // namespace terrace::lm
