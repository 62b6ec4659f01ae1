#include <terrace/examples/lm/tokenizer/word_encoder.h>

#include <algorithm>

namespace terrace::lm {

void WordEncoder::merge_unknown(const Bpe& bpe, std::span<const Word> block) {
  std::array<const Word*, Bpe::kMostWords> of;
  std::size_t count = 0;
  const auto merge = [&] {
    bpe.encode_words(std::span(unknown_).first(count));
    for (std::size_t i = 0; i < count; ++i) keep(*of[i], unknown_[i].tokens());
    count = 0;
  };
  for (const auto& word : block) {
    const bool is_known = word.place != nullptr ? word.place->key == word.key : !cache_.find_long(word.text, word.hash).empty();
    if (is_known || word.text.size() > kFewSymbols) continue;
    unknown_[count].word = word.text;
    of[count++] = &word;
    if (count == of.size()) merge();
  }
  merge();
}

void WordEncoder::append_rare(const Bpe& bpe, const Word& word, TokenBuffer& out) {
  if (word.place == nullptr)
    if (const auto known = cache_.find_long(word.text, word.hash); !known.empty()) return out.append(known);
  bpe.encode_word(word.text, scratch_);
  out.append(scratch_.ids);
  keep(word, scratch_.ids);
}

void WordEncoder::keep(const Word& word, std::span<const TokenId> ids) {
  if (word.place == nullptr) return cache_.insert_long(word.text, word.hash, ids);
  if (ids.size() > WordCache::kShortTokens) return;
  *word.place = {.key = word.key, .ids = {}, .count = static_cast<std::uint32_t>(ids.size())};
  std::ranges::copy(ids, word.place->ids.begin());
}

}  // namespace terrace::lm
