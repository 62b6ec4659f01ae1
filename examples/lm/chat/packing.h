// Assigns conversations to sequences: first fit, in a given order, among the most recently begun sequences.
//
// Pure. Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace terrace::lm {

class Packing {
 public:
  static constexpr std::size_t kOpen = 64;  // number of sequences to which a conversation may still be added

  // Requires length(order(i)) ≤ room for every item.
  Packing() = default;
  Packing(std::size_t items, std::uint64_t room, const std::function<std::uint32_t(std::size_t)>& order,
          const std::function<std::uint64_t(std::uint32_t)>& length);

  [[nodiscard]] std::size_t sequences() const { return first_.empty() ? 0 : first_.size() - 1; }
  [[nodiscard]] std::span<const std::uint32_t> items_of(std::size_t sequence) const {
    return std::span(items_).subspan(first_[sequence], first_[sequence + 1] - first_[sequence]);
  }

 private:
  std::vector<std::uint32_t> items_;
  std::vector<std::size_t> first_;  // index in items_ of each sequence's first item, and the end
};

}  // namespace terrace::lm
