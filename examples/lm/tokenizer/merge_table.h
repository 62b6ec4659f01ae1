// Which two neighbouring tokens merge, in which order of preference, and into which token.
//
// Owner: the tokenizer. Threads: find() from any. Errors: none.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include <terrace/examples/lm/tokenizer/token_id.h>

namespace terrace::lm {

inline constexpr std::uint32_t kNoRank = 0xffffffff;

struct Merge {
  std::uint32_t rank = kNoRank;  // the lowest one merges first
  TokenId id = 0;
};

class MergeTable {
 public:
  explicit MergeTable(std::size_t merges = 0)
      : entries_(std::bit_ceil(2 * merges + 2)), shift_(64 - std::countr_zero(entries_.size())) {}

  // A later merge of the same two takes the place of the earlier one.
  void insert(TokenId left, TokenId right, Merge merge) {
    auto& entry = entries_[place(key(left, right))];
    entry = {key(left, right), merge};
  }
  [[nodiscard]] Merge find(TokenId left, TokenId right) const { return entries_[place(key(left, right))].merge; }

 private:
  struct Entry {
    std::uint64_t key = ~std::uint64_t{0};
    Merge merge;
  };
  static std::uint64_t key(TokenId left, TokenId right) { return std::uint64_t{left} << 32U | right; }
  // Of the key, or of the empty entry in which it would stand.
  [[nodiscard]] std::size_t place(std::uint64_t of) const {
    std::size_t at = (of * 0x9e3779b97f4a7c15U) >> static_cast<unsigned>(shift_);
    while (entries_[at].key != of && entries_[at].merge.rank != kNoRank) at = (at + 1) & (entries_.size() - 1);
    return at;
  }
  std::vector<Entry> entries_;
  int shift_;
};

}  // namespace terrace::lm
