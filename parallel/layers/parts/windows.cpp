#include <terrace/parallel/layers/parts/windows.h>

#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>

namespace terrace::layers {

Windows Windows::parse(std::string_view text) {
  std::vector<std::int64_t> pattern;
  for (auto rest = text;;) {
    const auto comma = std::min(rest.find(','), rest.size());
    const auto word = rest.substr(0, comma);
    std::int64_t window = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), window);
    if (error != std::errc{} || end != word.data() + word.size() || window < 0)
      throw Error(
          fmt::format("'{}' is no window of attention, and no list of them\n  give numbers of positions, such as 4096, or "
                      "4096,4096,0 for blocks in turn; 0 is none",
                      base::printable(std::string(text))),
          ErrorKind::refused);
    pattern.push_back(window);
    if (comma == rest.size()) return Windows(std::move(pattern));
    rest.remove_prefix(comma + 1);
  }
}

std::string to_string(const Windows& windows) { return fmt::format("{}", fmt::join(windows.pattern(), ",")); }

}  // namespace terrace::layers
