// Merges the tokens of a short word. Tokens keep their positions, and a bit set marks those that still exist. Vector
// instructions find the lowest rank among sixteen positions at a time.
//
// Owner: the caller. Threads: one at a time. Errors: none.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include <terrace/examples/lm/tokenizer/words/merge_table.h>
#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

class ShortWord {
 public:
  static constexpr std::size_t kMost = 48;  // tokens; up to this number, a new search for the lowest rank is faster than a heap

  std::string_view word;

  // The caller writes the initial tokens here.
  [[nodiscard]] TokenId* ids() { return ids_.data(); }
  // Starts with the first `count` ids, and begins to fetch their merges.
  void begin(std::size_t count, const MergeTable& merges) {
    count_ = count;
    stands_ = (std::uint64_t{1} << count) - 1;
    for (std::size_t first = 0; first < count; first += kStep)
      each_four(first, [&](std::size_t i) { std::memcpy(keys_.data() + i, &kNone, sizeof kNone); });
    for (std::size_t i = 0; i + 1 < count; ++i) {
      if (MergeTable::is_near(ids_[i], ids_[i + 1])) continue;
      const auto place = merges.first_place(ids_[i], ids_[i + 1]);
      merges.prefetch(place);
      merged_[i] = static_cast<TokenId>(place);
    }
  }
  void look_up(const MergeTable& merges) {
    for (std::size_t i = 0; i + 1 < count_; ++i)
      set(i, MergeTable::is_near(ids_[i], ids_[i + 1]) ? merges.near(ids_[i], ids_[i + 1])
                                                       : merges.at(merged_[i], ids_[i], ids_[i + 1]));
    made_ = before_ = {.left = kNowhere, .right = kNowhere, .place = merges.nowhere()};
  }
  // Does the merge with the lowest rank; false if there is none. Begins to fetch the merges of the new token.
  [[gnu::always_inline]] bool merge_one(const MergeTable& merges) {
    const auto lowest = std::min({lowest_key(), looked_up(made_, merges), looked_up(before_, merges)});
    if (lowest >= kNoKey) return false;
    const auto left = static_cast<std::size_t>(lowest & ((1 << kPlaceBits) - 1)), right = next(left);
    ids_[left] = merged_[left];
    stands_ &= ~(std::uint64_t{1} << right);
    keys_[left] = keys_[right] = kNoKey;
    made_ = pair(left, next(left), merges);
    before_ = pair(before(left), left, merges);
    keys_[before_.left] = kNoKey;
    return true;
  }
  // After all merges: compacts the remaining ids to the front and returns them.
  std::span<const TokenId> tokens() {
    std::size_t count = 0;
    for (auto left = stands_; left != 0; left &= left - 1)
      ids_[count++] = ids_[static_cast<std::size_t>(std::countr_zero(left))];
    stands_ = (std::uint64_t{1} << count) - 1;
    return {ids_.data(), count};
  }
  void set_token(TokenId id) { ids_[0] = id, stands_ = 1; }

 private:
  static constexpr std::size_t kStep = 16, kNowhere = kMost + 1;
  static constexpr int kPlaceBits = 6;
  static constexpr std::int32_t kNoKey = std::int32_t{kNoRank} << kPlaceBits;
  template <class T>
  using Padded = std::array<T, kMost + kStep>;

  // Two adjacent tokens, and the position of their merge in the table.
  struct Pair {
    std::size_t left, right, place;
  };
  Pair pair(std::size_t left, std::size_t right, const MergeTable& merges) const {
    const bool is_pair = left != kNowhere && right != kNowhere;
    const auto place = is_pair ? merges.first_place(ids_[left], ids_[right]) : merges.nowhere();
    merges.prefetch(place);
    return {left, right, place};
  }
  // Positions of the adjacent tokens, or kNowhere.
  [[nodiscard]] std::size_t next(std::size_t at) const {
    const auto behind = stands_ >> at >> 1U;
    return behind == 0 ? kNowhere : at + 1 + static_cast<std::size_t>(std::countr_zero(behind));
  }
  [[nodiscard]] std::size_t before(std::size_t at) const {
    const auto ahead = stands_ & ((std::uint64_t{1} << at) - 1);
    return ahead == 0 ? kNowhere : static_cast<std::size_t>(std::bit_width(ahead)) - 1;
  }

  std::int32_t set(std::size_t i, const Merge& merge) {
    merged_[i] = merge.id;
    return keys_[i] = static_cast<std::int32_t>(merge.rank << kPlaceBits | i);
  }
  std::int32_t looked_up(const Pair& of, const MergeTable& merges) {
    return set(of.left, merges.at(of.place, ids_[of.left], ids_[of.right]));
  }
  [[nodiscard]] std::int32_t lowest_key() const {
    Four lowest = kNone;
    for (std::size_t first = 0; first < count_; first += kStep)
      each_four(first, [&](std::size_t i) {
        Four here;
        std::memcpy(&here, keys_.data() + i, sizeof here);
        lowest = here < lowest ? here : lowest;
      });
    return std::min(std::min(lowest[0], lowest[1]), std::min(lowest[2], lowest[3]));
  }

  // Four numbers in one vector register.
  using Four [[gnu::vector_size(16)]] = std::int32_t;
  static constexpr Four kNone = {kNoKey, kNoKey, kNoKey, kNoKey};
  template <class F>
  static void each_four(std::size_t first, F&& f) {
    f(first), f(first + 4), f(first + 8), f(first + 12);
  }

  std::size_t count_ = 0;     // before the merges
  std::uint64_t stands_ = 0;  // a bit for each position that is still a token
  Padded<TokenId> ids_{};
  // For each token and the next one: the rank of their merge, with the position in the lowest bits, so that of equal ranks the
  // leftmost is lowest; and the id of the merged token. Pairs that are still to be looked up have no rank here.
  Padded<std::int32_t> keys_{};
  Padded<TokenId> merged_{};
  Pair made_{}, before_{};  // to be looked up: the new token with the next one, and the previous one with it
};

}  // namespace terrace::lm
