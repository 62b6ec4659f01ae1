// A value for each block of a model, as a pattern that repeats: {4096, 4096, 0} is two blocks with 4096 and one with 0, and so
// on.
//
// Threads: values. Errors: Error(ErrorKind::refused) for a text that is not a pattern.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::layers {

template <class T, T kUsual>
class BlockPattern {
 public:
  BlockPattern(T of_all = kUsual) : pattern_{of_all} {}
  explicit BlockPattern(std::vector<T> pattern) : pattern_(std::move(pattern)) {
    if (pattern_.empty()) pattern_ = {kUsual};
  }
  static BlockPattern parse(std::string_view text);  // numbers, with commas between them

  [[nodiscard]] T of(std::int64_t block) const { return pattern_[static_cast<std::size_t>(block) % pattern_.size()]; }
  [[nodiscard]] bool is_usual() const {
    return std::ranges::all_of(pattern_, [](T value) { return value == kUsual; });
  }
  [[nodiscard]] const std::vector<T>& pattern() const { return pattern_; }
  friend bool operator==(const BlockPattern&, const BlockPattern&) = default;

 private:
  std::vector<T> pattern_;
};

using Windows = BlockPattern<std::int64_t, 0>;   // how many positions a position attends to, with itself; 0: all before it
using RotatedBlocks = BlockPattern<bool, true>;  // whether a block with rotary positions rotates q and k
std::string to_string(const Windows& windows);   // as parse() reads it
std::string to_string(const RotatedBlocks& blocks);

// The shortest prefix that gives a list when it is repeated: a list of all blocks, or one that is itself repeated over them.
template <class T>
std::vector<T> shortest_pattern(std::vector<T> all, bool is_repeated = false) {
  for (std::size_t length = 1; length < all.size(); ++length) {
    bool repeats = !is_repeated || all.size() % length == 0;
    for (std::size_t b = length; b < all.size(); ++b) repeats = repeats && all[b] == all[b - length];
    if (!repeats) continue;
    all.resize(length);
    break;
  }
  return all;
}

}  // namespace terrace::layers
