// The window of each block's attention: how many positions a position attends to, including itself; 0: all before it. The
// windows of blocks are a repeated pattern: {4096, 4096, 0} is two blocks with a window and one without, and so on.
//
// Threads: a value. Errors: Error(ErrorKind::refused) for a text that is not a pattern.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::layers {

class Windows {
 public:
  Windows(std::int64_t of_all = 0) : pattern_{of_all} {}
  explicit Windows(std::vector<std::int64_t> pattern) : pattern_(std::move(pattern)) {
    if (pattern_.empty()) pattern_ = {0};
  }
  // "4096" or "4096,4096,0".
  static Windows parse(std::string_view text);

  [[nodiscard]] std::int64_t of(std::int64_t block) const {
    return pattern_[static_cast<std::size_t>(block) % pattern_.size()];
  }
  [[nodiscard]] bool none() const {
    return std::ranges::all_of(pattern_, [](auto w) { return w == 0; });
  }
  [[nodiscard]] const std::vector<std::int64_t>& pattern() const { return pattern_; }
  friend bool operator==(const Windows&, const Windows&) = default;

 private:
  std::vector<std::int64_t> pattern_;
};
std::string to_string(const Windows& windows);  // as parse() reads it

}  // namespace terrace::layers
