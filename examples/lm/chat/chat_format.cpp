#include <terrace/examples/lm/chat/chat_format.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/chat/answers.h>
#include <terrace/examples/lm/chat/jinja/json.h>

namespace terrace::lm {
namespace {

constexpr const char* kTurn = "<|im_start|>";
constexpr const char* kTurnEnd = "<|im_end|>";
constexpr const char* kEndOfText = "<|endoftext|>";

std::string head_of(std::string_view role) { return kTurn + std::string(role) + "\n"; }

TemplateInput input_of(const std::vector<Message>& messages) {
  TemplateInput out;
  for (const auto& message : messages)
    out.messages.push_back(template_message(message.given.is_null()
                                                ? nlohmann::ordered_json{{"role", message.role}, {"content", message.content}}
                                                : message.given));
  return out;
}

TemplateInput input_of(const Conversation& conversation) {
  auto out = input_of(conversation.messages);
  out.more.emplace_back("tools", jinja::from_json(conversation.tools));
  out.more.emplace_back("documents", jinja::from_json(conversation.documents));
  for (const auto& [key, value] : conversation.variables.items()) out.more.emplace_back(key, jinja::from_json(value));
  return out;
}

std::vector<Part> parts_of_text(const LearnedText& text) {
  std::vector<Part> parts;
  std::size_t done = 0;
  for (const auto& [begin, end] : text.answers) {
    parts.push_back({text.text.substr(done, begin - done), false});
    parts.push_back({text.text.substr(begin, end - begin), true});
    done = end;
  }
  parts.push_back({text.text.substr(done), false});
  return parts;
}

}  // namespace

ChatFormat::ChatFormat(const Tokenizer& tokenizer, const TokenizerConfig& config, std::optional<std::int64_t> now)
    : tokenizer_(&tokenizer) {
  std::vector<AddedToken> special;
  for (auto& content : tokenizer.special()) {
    auto& token = special.emplace_back();
    token.id = static_cast<TokenId>(special.size() - 1);
    token.content = std::move(content);
  }
  special_ = AddedTokens(std::move(special));
  for (const auto& name : {config.eos, std::string(kEndOfText)})
    if (end_of_text_.empty() && !name.empty() && tokenizer.id_of(name)) end_of_text_ = name;
  if (config.chat_template) {
    template_.emplace(*config.chat_template, config.template_file.string(), config.tokens, now);
    end_ = end_of_answers(*template_, special_);
    return;
  }
  end_ = tokenizer.id_of(kTurnEnd) ? kTurnEnd : end_of_text_;
  if (end_.empty())
    throw base::Refused(
        "the tokenizer has no token that can end an answer: neither <|im_end|> nor <|endoftext|> nor the eos_token of a "
        "tokenizer_config.json beside it\n  add one of them, as `terrace train-tokenizer` does");
}

std::string ChatFormat::warning() const {
  if (!template_ || !end_.empty()) return {};
  return fmt::format("the chat template {} writes no special token behind an answer, so the model learns no end of its answers",
                     template_->name());
}

std::vector<Part> ChatFormat::as_chatml(const std::vector<Message>& messages) const {
  std::vector<Part> parts;
  for (const auto& message : messages) {
    if (!message.not_plain.empty()) throw base::Refused(message.not_plain);
    parts.push_back({head_of(message.role), false});
    parts.push_back({message.content + end_, message.role == kAnswering, message.learned});
    parts.push_back({"\n", false});
  }
  return parts;
}

std::vector<std::vector<Part>> ChatFormat::parts_of(const Conversation& conversation) const {
  if (conversation.messages.empty())
    return {{{conversation.prompt, false}, {conversation.completion + (end_of_text_.empty() ? end_ : end_of_text_), true}}};
  if (!template_) return {as_chatml(conversation.messages)};
  std::vector<std::vector<Part>> out;
  for (const auto& text : learned_texts(*template_, input_of(conversation), conversation.messages, special_))
    out.push_back(parts_of_text(text));
  return out;
}

std::vector<TokenId> ChatFormat::encode_prompt(const std::vector<Message>& messages) const {
  std::vector<Part> parts;
  if (template_) {
    parts.push_back({template_->write(input_of(messages), messages.size(), true).text, false});
  } else {
    parts = as_chatml(messages);
    parts.push_back({head_of(kAnswering), false});
  }
  Encoding with;
  return encode(std::move(parts), with).tokens;
}

std::vector<ChatFormat::Encoded> ChatFormat::encode(const Conversation& conversation, Encoding& with) const {
  std::vector<Encoded> out;
  for (auto& parts : parts_of(conversation)) {
    auto encoded = encode(std::move(parts), with);
    if (std::ranges::find(encoded.learned, true) != encoded.learned.end()) out.push_back(std::move(encoded));
  }
  if (out.empty())
    throw base::Refused(
        "the chat template writes no answer of it, so there is nothing to learn\n  add an answer, or remove the line");
  return out;
}

ChatFormat::Encoded ChatFormat::encode(std::vector<Part> parts, Encoding& with) const {
  // Joins adjacent parts with the same flags, because a tokenizer may join letters across them.
  std::vector<Part> joined;
  for (auto& part : parts) {
    if (!joined.empty() && joined.back().answer == part.answer && joined.back().learned == part.learned)
      joined.back().text += part.text;
    else
      joined.push_back(std::move(part));
  }
  Encoded out;
  for (const auto& [text, answer, learned] : joined) {
    TokenBuffer ids;
    // In the middle of a text, the tokenizer must not add the space that some tokenizers add at the beginning.
    const bool goes_on = !out.tokens.empty() && !tokenizer_->is_added(out.tokens.back());
    tokenizer_->encode(text, {.goes_on = goes_on}, with, ids);
    out.tokens.insert(out.tokens.end(), ids.view().begin(), ids.view().end());
    out.learned.resize(out.tokens.size(), learned);
  }
  return out;
}

}  // namespace terrace::lm
