#include <terrace/examples/lm/chat/chat_format.h>

#include <fmt/format.h>

#include <terrace/core/error.h>

namespace terrace::lm {
namespace {

constexpr const char* kTurn = "<|im_start|>";
constexpr const char* kTurnEnd = "<|im_end|>";
constexpr const char* kEndOfText = "<|endoftext|>";

std::string head_of(std::string_view role) { return kTurn + std::string(role) + "\n"; }

}  // namespace

ChatFormat::ChatFormat(const Tokenizer& tokenizer, const TokenizerConfig& config) : tokenizer_(&tokenizer) {
  for (const auto& name : {config.eos, std::string(kEndOfText)})
    if (end_of_text_.empty() && !name.empty() && tokenizer.id_of(name)) end_of_text_ = name;
  if (config.chat_template) template_file_ = config.template_file.string();
  end_ = tokenizer.id_of(kTurnEnd) ? kTurnEnd : end_of_text_;
  if (end_.empty())
    throw Error(
        "the tokenizer has no token that can end an answer: neither <|im_end|> nor <|endoftext|> nor the eos_token of a "
        "tokenizer_config.json beside it\n  add one of them, as `terrace train-tokenizer` does",
        Exit::usage);
}

std::string ChatFormat::warning() const {
  if (template_file_.empty()) return {};
  return fmt::format(
      "{} has a chat template, which is not used: messages are written as ChatML (docs/chat.md), so a model that was "
      "trained with the template learns another spelling; give \"prompt\" and \"completion\" to spell it yourself",
      template_file_);
}

std::vector<Part> ChatFormat::parts_of(const Conversation& conversation) const {
  if (conversation.messages.empty())
    return {{conversation.prompt, false}, {conversation.completion + (end_of_text_.empty() ? end_ : end_of_text_), true}};
  std::vector<Part> parts;
  for (const auto& [role, content] : conversation.messages) {
    parts.push_back({head_of(role), false});
    parts.push_back({content + end_, role == kAnswering});
    parts.push_back({"\n", false});
  }
  return parts;
}

std::vector<TokenId> ChatFormat::encode_prompt(const std::vector<Message>& messages) const {
  std::vector<Part> parts;
  if (!messages.empty()) parts = parts_of({.messages = messages, .prompt = {}, .completion = {}});
  parts.push_back({head_of(kAnswering), false});
  Encoding with;
  return encode(std::move(parts), with).tokens;
}

ChatFormat::Encoded ChatFormat::encode(const Conversation& conversation, Encoding& with) const {
  return encode(parts_of(conversation), with);
}

ChatFormat::Encoded ChatFormat::encode(std::vector<Part> parts, Encoding& with) const {
  // Neighbours that are learned alike are one text, because a tokenizer may join their letters.
  std::vector<Part> joined;
  for (auto& part : parts) {
    if (!joined.empty() && joined.back().answer == part.answer)
      joined.back().text += part.text;
    else
      joined.push_back(std::move(part));
  }
  Encoded out;
  for (const auto& [text, answer] : joined) {
    TokenBuffer ids;
    tokenizer_->encode(text, {}, with, ids);
    out.tokens.insert(out.tokens.end(), ids.view().begin(), ids.view().end());
    out.learned.resize(out.tokens.size(), answer);
  }
  return out;
}

}  // namespace terrace::lm
