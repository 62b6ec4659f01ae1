#include <terrace/examples/lm/generate/model_text.h>

#include <algorithm>

namespace terrace::lm {

std::vector<std::int32_t> ModelText::tokens_of(std::string_view text, bool special) const {
  std::vector<std::int32_t> tokens;
  if (!tokenizer_)
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  else
    for (const auto id : tokenizer_->encode(text, {.finds_added = special})) tokens.push_back(static_cast<std::int32_t>(id));
  return tokens;
}

bool ModelText::ends(std::int32_t token) const { return std::ranges::find(ends_, token) != ends_.end(); }

void ModelText::end_at(std::string_view spelling) {
  if (!tokenizer_) return;
  if (const auto id = tokenizer_->id_of(spelling)) end_at(static_cast<std::int32_t>(*id));
}

void ModelText::end_as_named() {
  for (const auto id : named_.ends) end_at(static_cast<std::int32_t>(id));
  if (!named_.eos.empty()) end_at(named_.eos);
  for (const auto* const usual : {"<|endoftext|>", "</s>"})
    if (ends_.empty()) end_at(usual);
}

ModelText::Stream::Stream(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {
  if (tokenizer) ids_.emplace(*tokenizer);
}

std::string ModelText::Stream::add(std::int32_t token) {
  if (!ids_) return bytes_.add(std::string(1, static_cast<char>(token)));
  const auto id = static_cast<TokenId>(token);
  return tokenizer_->has(id) ? ids_->add(id) : std::string();
}

std::string ModelText::Stream::finish() { return ids_ ? ids_->finish() : bytes_.finish(); }

}  // namespace terrace::lm
