#include <terrace/parallel/layers/parts/block_pattern.h>

#include <charconv>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>

namespace terrace::layers {
namespace {

template <class T>
std::vector<T> numbers_in(std::string_view text, std::int64_t most, const char* refusal) {
  std::vector<T> all;
  for (auto rest = text;;) {
    const auto comma = std::min(rest.find(','), rest.size());
    const auto* const last = rest.data() + comma;
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), last, number);
    if (error != std::errc{} || end != last || number < 0 || number > most)
      throw Error(fmt::format("'{}' is {}", base::printable(std::string(text)), refusal), ErrorKind::refused);
    all.push_back(static_cast<T>(number));
    if (comma == rest.size()) return all;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

template <>
Windows Windows::parse(std::string_view text) {
  return Windows(numbers_in<std::int64_t>(text, std::numeric_limits<std::int64_t>::max(),
                                          "no window of attention, and no list of them\n  give numbers of positions, such as "
                                          "4096, or 4096,4096,0 for blocks in turn; 0 is none"));
}

template <>
RotatedBlocks RotatedBlocks::parse(std::string_view text) {
  return RotatedBlocks(
      shortest_pattern(numbers_in<bool>(text, 1,
                                        "no list of rotated blocks\n  give 1 for all of them, or a list such as 1,1,1,0 for "
                                        "blocks in turn; 0 is a block that rotates nothing"),
                       true));
}

std::string to_string(const Windows& windows) { return fmt::format("{}", fmt::join(windows.pattern(), ",")); }

std::string to_string(const RotatedBlocks& blocks) {
  return fmt::format("{}", fmt::join(std::vector<int>(blocks.pattern().begin(), blocks.pattern().end()), ","));
}

}  // namespace terrace::layers
