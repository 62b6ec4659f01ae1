#include <terrace/core/base/nesting.h>

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>

namespace terrace::base {
namespace {

constexpr std::size_t kMostDepth = 64, kMostParts = 16;
constexpr std::size_t kMostTomlBytes = kMiB;

// The end of the string that begins at `at`; the end of the text if the string is not closed.
std::size_t end_of_string(std::string_view text, std::size_t at, bool toml) {
  const char quote = text[at];
  const bool long_one = toml && text.substr(at, 3) == std::string_view(quote == '"' ? "\"\"\"" : "'''");
  const auto close = text.substr(at, long_one ? 3 : 1);
  for (at += close.size(); at < text.size(); ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (text.substr(at, close.size()) == close || (!long_one && text[at] == '\n')) {
      return at + close.size();
    }
  }
  return text.size();
}

void demand_shallow(std::string_view text, bool toml) {
  std::size_t depth = 0, points = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || (toml && c == '\'')) {
      at = end_of_string(text, at, toml);
      continue;
    }
    if (toml && c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (depth > kMostDepth) throw Error(fmt::format("its values are nested more than {} levels deep", kMostDepth));
    const bool in_key = c != '\n' && c != '=' && c != ',' && c != '[' && c != '{';
    points = in_key ? points + (c == '.' ? 1 : 0) : 0;
    if (toml && points >= kMostParts) throw Error(fmt::format("a key has more than {} parts", kMostParts));
    ++at;
  }
}

}  // namespace

void demand_shallow_json(std::string_view text) { demand_shallow(text, false); }

void demand_shallow_toml(std::string_view text) {
  if (text.size() > kMostTomlBytes) throw Error(fmt::format("it is larger than {}", format_bytes(kMostTomlBytes)));
  demand_shallow(text, true);
}

}  // namespace terrace::base
