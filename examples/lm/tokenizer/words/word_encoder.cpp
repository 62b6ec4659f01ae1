#include <terrace/examples/lm/tokenizer/words/word_encoder.h>

namespace terrace::lm {

void WordEncoder::merge_unknown(const Bpe& bpe, std::span<Word> block) {
  std::array<Word*, Bpe::kMostWords> of;
  std::size_t count = 0;
  const auto merge = [&] {
    bpe.encode_words(std::span(unknown_).first(count));
    for (std::size_t i = 0; i < count; ++i) {
      const auto ids = unknown_[i].tokens();
      if (keep(*of[i], ids)) continue;
      of[i]->first = static_cast<std::uint32_t>(merged_.size());
      of[i]->count = static_cast<std::uint32_t>(ids.size());
      merged_.append(ids);
    }
    count = 0;
  };
  merged_.clear();
  for (auto& word : block) {
    const bool is_known = word.place != nullptr ? word.place->holds(word.key) : !cache_.find_long(word.text, word.hash).empty();
    if (is_known || word.text.size() > ShortWord::kMost) continue;
    unknown_[count].word = word.text;
    of[count++] = &word;
    if (count == of.size()) merge();
  }
  merge();
}

void WordEncoder::append_rare(const Bpe& bpe, const Word& word, TokenBuffer& out) {
  if (word.count > 0) return out.append(merged_.view().subspan(word.first, word.count));
  if (word.place == nullptr)
    if (const auto known = cache_.find_long(word.text, word.hash); !known.empty()) return out.append(known);
  bpe.encode_word(word.text, scratch_);
  out.append(scratch_.ids);
  keep(word, scratch_.ids);
}

bool WordEncoder::keep(const Word& word, std::span<const TokenId> ids) {
  if (word.place == nullptr) return cache_.insert_long(word.text, word.hash, ids);
  const bool keeps = ids.size() <= WordCache::kShortTokens;
  if (keeps) word.place->set(word.key, ids);
  return keeps;
}

}  // namespace terrace::lm
