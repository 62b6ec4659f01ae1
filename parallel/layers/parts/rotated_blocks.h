// Which blocks of a model with rotary positions rotate q and k: a repeated pattern, so that {1, 1, 1, 0} leaves out every
// fourth block.
//
// Threads: a value. Errors: Error(ErrorKind::refused) for a text that is not a pattern.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::layers {

class RotatedBlocks {
 public:
  RotatedBlocks() = default;  // all blocks rotate
  // Keeps the shortest pattern that gives these blocks.
  explicit RotatedBlocks(std::vector<bool> blocks);
  // "1" or "1,1,1,0".
  static RotatedBlocks parse(std::string_view text);

  [[nodiscard]] bool of(std::int64_t block) const { return pattern_[static_cast<std::size_t>(block) % pattern_.size()]; }
  [[nodiscard]] bool all() const { return pattern_ == std::vector{true}; }
  [[nodiscard]] const std::vector<bool>& pattern() const { return pattern_; }
  friend bool operator==(const RotatedBlocks&, const RotatedBlocks&) = default;

 private:
  std::vector<bool> pattern_{true};
};
std::string to_string(const RotatedBlocks& blocks);  // as parse() reads it

}  // namespace terrace::layers
