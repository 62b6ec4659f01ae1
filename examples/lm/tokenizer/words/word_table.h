// Maps the bytes of a whole word to its token, if it is one.
//
// Owner: the tokenizer. Threads: find() from any. Errors: std::bad_alloc from the constructor.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <xxhash.h>

#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

class WordTable {
 public:
  // Has space for `words` words; without any, find() finds nothing.
  explicit WordTable(std::size_t words) : entries_(std::bit_ceil(2 * words + 2)) {}

  // Each word may be inserted once.
  void insert(std::string_view word, TokenId id) {
    const auto hash = hash_of(word);
    auto at = first_place(hash);
    while (entries_[at].used) at = next_place(at);
    entries_[at] = {.tag = tag_of(hash), .used = true, .id = id};
  }

  static std::uint64_t hash_of(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }
  void prefetch(std::uint64_t hash) const { __builtin_prefetch(&entries_[first_place(hash)]); }
  // The token that find() compares first; nothing if there is none.
  [[nodiscard]] std::optional<TokenId> first_of(std::uint64_t hash) const {
    return find(hash, [](TokenId) { return true; });
  }
  // `is_word(id)`: whether the token has the bytes of the word. Most words that are not tokens lead to an empty entry, so
  // nothing is compared.
  template <class IsWord>
  [[nodiscard]] std::optional<TokenId> find(std::uint64_t hash, const IsWord& is_word) const {
    for (auto at = first_place(hash); entries_[at].used; at = next_place(at))
      if (entries_[at].tag == tag_of(hash) && is_word(entries_[at].id)) return entries_[at].id;
    return std::nullopt;
  }

 private:
  struct Entry {
    std::uint32_t tag : 31 = 0;
    std::uint32_t used : 1 = 0;
    TokenId id = 0;
  };
  static_assert(sizeof(Entry) == 8);
  static std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 33U); }
  [[nodiscard]] std::size_t first_place(std::uint64_t hash) const { return hash & (entries_.size() - 1); }
  [[nodiscard]] std::size_t next_place(std::size_t at) const { return (at + 1) & (entries_.size() - 1); }

  std::vector<Entry> entries_;
};

}  // namespace terrace::lm
