#include <terrace/parallel/layers/parts/rotated_blocks.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>
#include <terrace/parallel/layers/parts/pattern.h>

namespace terrace::layers {

RotatedBlocks::RotatedBlocks(std::vector<bool> blocks) : pattern_(shortest_pattern(std::move(blocks))) {
  if (pattern_.empty()) pattern_ = {true};
}

RotatedBlocks RotatedBlocks::parse(std::string_view text) {
  std::vector<bool> blocks;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const bool ends = i + 1 == text.size(), goes_on = i + 2 < text.size() && text[i + 1] == ',';
    if ((text[i] != '0' && text[i] != '1') || (!ends && !goes_on)) {
      blocks.clear();
      break;
    }
    blocks.push_back(text[i] == '1');
  }
  if (blocks.empty())
    throw Error(fmt::format("'{}' is no list of rotated blocks\n  give 1 for all of them, or a list such as 1,1,1,0 for blocks "
                            "in turn; 0 is a block that rotates nothing",
                            base::printable(std::string(text))),
                ErrorKind::refused);
  return RotatedBlocks(std::move(blocks));
}

std::string to_string(const RotatedBlocks& blocks) {
  std::vector<int> numbers(blocks.pattern().begin(), blocks.pattern().end());
  return fmt::format("{}", fmt::join(numbers, ","));
}

}  // namespace terrace::layers
