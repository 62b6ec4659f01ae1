// Tells which two adjacent tokens merge, at which rank, and into which token.
//
// Owner: the tokenizer. Threads: find() from any. Errors: none.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

inline constexpr std::uint32_t kNoRank = (1U << 25U) - 1;  // above all ranks; fits into 31 bits with six more bits after it

struct Merge {
  std::uint32_t rank = kNoRank;  // the lowest merges first
  TokenId id = 0;
};

class MergeTable {
 public:
  explicit MergeTable(std::size_t merges = 0)
      : places_(std::bit_ceil(2 * merges + 2)),
        shift_(64 - std::countr_zero(places_)),
        entries_(places_ + 1),
        may_merge_(places_ * kBitsOfPlace / 64 + 1),
        near_(kNear * kNear) {}

  // A later merge of the same two tokens replaces the earlier one.
  void insert(TokenId left, TokenId right, Merge merge) {
    const auto of = key(left, right);
    entries_[found(hash(of) >> static_cast<unsigned>(shift_), of)] = {of, merge};
    may_merge_[bit(of) / 64] |= std::uint64_t{1} << bit(of) % 64;
    if (is_near(left, right)) near_[left * kNear + right] = merge;
  }
  [[nodiscard]] Merge find(TokenId left, TokenId right) const { return at(first_place(left, right), left, right); }

  // Pairs of ids below 256, which most byte vocabularies use for the bytes, have a table that needs no search.
  static bool is_near(TokenId left, TokenId right) { return (left | right) < kNear; }
  [[nodiscard]] Merge near(TokenId left, TokenId right) const { return near_[left * kNear + right]; }

  // find() in two steps: the first returns where to look, so that the cache line can be fetched before at() reads it.
  [[nodiscard]] std::size_t first_place(TokenId left, TokenId right) const {
    const auto of = key(left, right);
    const bool may_merge = (may_merge_[bit(of) / 64] >> bit(of) % 64 & 1U) != 0;
    return may_merge ? hash(of) >> static_cast<unsigned>(shift_) : nowhere();
  }
  // The position of an entry that is always empty.
  [[nodiscard]] std::size_t nowhere() const { return places_; }
  void prefetch(std::size_t first_place) const { __builtin_prefetch(&entries_[first_place]); }
  [[nodiscard]] Merge at(std::size_t first_place, TokenId left, TokenId right) const {
    return entries_[found(first_place, key(left, right))].merge;
  }

 private:
  struct Entry {
    std::uint64_t key = ~std::uint64_t{0};
    Merge merge;
  };
  static std::uint64_t key(TokenId left, TokenId right) { return std::uint64_t{left} << 32U | right; }
  static std::uint64_t hash(std::uint64_t key) { return key * 0x9e3779b97f4a7c15U; }
  [[nodiscard]] std::size_t bit(std::uint64_t of) const { return hash(of) >> static_cast<unsigned>(shift_ - kBitShift); }
  // The position of the key, or of the empty entry where it would be.
  [[nodiscard]] std::size_t found(std::size_t at, std::uint64_t of) const {
    const auto is_other = [&] { return static_cast<unsigned>(entries_[at].key != of); };
    const auto is_taken = [&] { return static_cast<unsigned>(entries_[at].merge.rank != kNoRank); };
    while ((is_other() & is_taken()) != 0) at = (at + 1) & (places_ - 1);  // `&` instead of `&&`: a single branch
    return at;
  }
  // A bit set with eight bits per entry shows for most pairs that they do not merge; it fits into a faster cache than the
  // entries.
  static constexpr int kBitShift = 3;
  static constexpr std::size_t kBitsOfPlace = std::size_t{1} << kBitShift;

  std::size_t places_;
  int shift_;
  std::vector<Entry> entries_;  // the last one stays empty, for pairs that do not merge
  std::vector<std::uint64_t> may_merge_;
  static constexpr std::size_t kNear = 256;
  std::vector<Merge> near_;
};

}  // namespace terrace::lm
