// A cache of the tokens of words: most words of a text are repetitions.
//
// There are two tables of fixed size. A word of at most 15 bytes and at most four tokens has one possible place, which its hash
// decides, and a new word replaces the old one; two places fill a cache line. Longer words are in a table that is emptied when
// it is full.
//
// Owner: one encoding thread; several tokenizers must not share it. Threads: the owner's. Errors: std::bad_alloc.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

class WordCache {
 public:
  static constexpr std::size_t kShortBytes = 15, kShortTokens = 4;

  WordCache();

  // The bytes of a short word, padded with zeros; the last byte is its length.
  struct Key {
    std::uint64_t low = 0, high = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  class alignas(32) Short {
   public:
    // `ids` has at most kShortTokens elements.
    void set(const Key& key, std::span<const TokenId> ids) {
      key_ = {key.low, key.high | std::uint64_t{ids.size()} << kCountShift};
      std::ranges::copy(ids, ids_.begin());
    }
    [[nodiscard]] bool holds(const Key& key) const {
      return ((key_.low ^ key.low) | (key_.high ^ key.high) << (64U - kCountShift)) == 0;
    }
    // Appends the tokens of the stored word.
    void append_to(TokenBuffer& out) const {
      std::memcpy(out.reserve(ids_.size()), ids_.data(), sizeof ids_);
      out.written(key_.high >> kCountShift);
    }

   private:
    static constexpr unsigned kCountShift = 60;  // the length of a word leaves four bits of the last byte free
    Key key_;
    std::array<TokenId, kShortTokens> ids_{};
  };

  // `end`: the end of the text that contains the word; up to there, whole machine words can be read.
  static Key key_of(const char* word, std::size_t bytes, const char* end) {
    Key key;
    if (end - word >= 16) {
      std::memcpy(&key.low, word, 8);
      std::memcpy(&key.high, word + 8, 8);
      key.low &= kMasks[bytes].low;
      key.high &= kMasks[bytes].high;
    } else {
      std::array<char, 16> copy{};
      std::memcpy(copy.data(), word, bytes);
      std::memcpy(&key, copy.data(), sizeof key);
    }
    key.high |= std::uint64_t{bytes} << 56U;
    return key;
  }
  // The only place that may contain the key.
  Short& place(const Key& key) {
    const std::uint64_t hash = (key.low ^ key.high * 0x9fb21c651e98df25U) * 0x9e3779b97f4a7c15U;
    return short_[hash >> (64U - kShortBits)];
  }

  // Returns the hash of a long word and begins to fetch its place.
  [[nodiscard]] std::uint64_t prefetch_long(std::string_view word) const;
  // Empty if the word is not in the cache; every cached word has tokens. Valid until the next insert_long().
  [[nodiscard]] std::span<const TokenId> find_long(std::string_view word, std::uint64_t hash) const;
  // Returns false if the word is too long or has no tokens.
  bool insert_long(std::string_view word, std::uint64_t hash, std::span<const TokenId> ids);

 private:
  static constexpr unsigned kShortBits = 17, kLongBits = 15;
  static constexpr std::size_t kMostLongBytes = 1024;                // of one word
  static constexpr std::size_t kMostLongSum = std::size_t{2} << 20;  // of all words together; and half as many tokens

  struct Masks {
    std::uint64_t low, high;
  };
  static constexpr std::array<Masks, 16> kMasks = [] {
    std::array<Masks, 16> masks{};
    for (unsigned bytes = 0; bytes < 16; ++bytes) {
      masks[bytes].low = bytes >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * bytes) - 1;
      masks[bytes].high = bytes <= 8 ? 0 : (std::uint64_t{1} << 8 * (bytes - 8)) - 1;
    }
    return masks;
  }();
  struct Long {
    std::uint64_t hash = 0;
    std::uint32_t first_byte = 0, bytes = 0, first_id = 0, count = 0;
  };
  [[nodiscard]] std::size_t place_long(std::string_view word, std::uint64_t hash) const;

  std::vector<Short> short_;
  std::vector<Long> long_;
  std::size_t long_count_ = 0;
  std::vector<char> bytes_;
  std::vector<TokenId> ids_;
};

}  // namespace terrace::lm
