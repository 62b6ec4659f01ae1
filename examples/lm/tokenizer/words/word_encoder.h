// Encodes the words of a text: known words from the cache, the others by merging.
//
// The cache and the merge tables are larger than a processor's fastest caches. So a block of words is cut first while their
// places in the cache are being fetched; then the words that are not in the cache are merged in turns (bpe.h).
//
// Owner: one encoding thread; several tokenizers must not share it. Threads: the owner's. Errors: std::bad_alloc.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include <terrace/examples/lm/tokenizer/words/bpe.h>
#include <terrace/examples/lm/tokenizer/words/token_id.h>
#include <terrace/examples/lm/tokenizer/words/word_cache.h>
#include <terrace/examples/lm/tokenizer/words/words.h>

namespace terrace::lm {

class WordEncoder {
 public:
  // Encodes one word of a text that ends at `end`.
  void encode_word(const Bpe& bpe, std::string_view word, const char* end, TokenBuffer& out) {
    append(bpe, located(word, end), out);
  }

  // Not inlined: otherwise the compiler leaves function calls in the loop.
  template <Pattern kPattern>
  [[gnu::noinline]] void encode(const Bpe& bpe, std::string_view text, TokenBuffer& out) {
    const char* const end = text.data() + text.size();
    const KnownWords words(end);
    for (const char* at = text.data(); at < end;) {
      std::size_t count = 0;
      while (at < end && count < kBlock)
        at = words.some<kPattern>(at, [&](const char* begin, const char* stop) {
          block_[count++] = located({begin, static_cast<std::size_t>(stop - begin)}, end);
        });
      const auto block = std::span(block_).first(count);
      if (bpe.encodes_words()) merge_unknown(bpe, block);
      for (const auto& word : block) append(bpe, word, out);
    }
  }

 private:
  struct Word {
    std::string_view text;
    WordCache::Key key;                 // for a short word
    WordCache::Short* place = nullptr;  // nullptr for a long one
    std::uint64_t hash = 0;             // for a long word
    // The position of its tokens in merged_, if the cache does not keep them.
    std::uint32_t first = 0, count = 0;
  };
  static constexpr std::size_t kBlock = 128;

  // Finds the word's place in the cache and begins to fetch it.
  Word located(std::string_view word, const char* end) {
    if (word.size() > WordCache::kShortBytes) return {.text = word, .key = {}, .hash = cache_.prefetch_long(word)};
    const auto key = WordCache::key_of(word.data(), word.size(), end);
    auto& place = cache_.place(key);
    __builtin_prefetch(&place);
    return {.text = word, .key = key, .place = &place};
  }

  void append(const Bpe& bpe, const Word& word, TokenBuffer& out) {
    if (word.place != nullptr && word.place->holds(word.key)) return word.place->append_to(out);
    append_rare(bpe, word, out);
  }
  void append_rare(const Bpe& bpe, const Word& word, TokenBuffer& out);
  // Encodes the words that are not in the cache and adds them to it.
  void merge_unknown(const Bpe& bpe, std::span<Word> block);
  // Returns false if the cache does not keep such a word.
  bool keep(const Word& word, std::span<const TokenId> ids);

  WordCache cache_;
  MergeScratch scratch_;
  std::array<Word, kBlock + KnownWords::kMostAtOnce> block_;
  std::array<ShortWord, Bpe::kMostWords> unknown_;
  TokenBuffer merged_;  // the tokens of a block's words
};

}  // namespace terrace::lm
