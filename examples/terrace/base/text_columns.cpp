#include <terrace/examples/terrace/base/text_columns.h>

#include <algorithm>

namespace terrace::cli {

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string cut(std::string_view text, std::size_t columns) {
  if (columns_of(text) <= columns) return std::string(text);
  std::string out;
  std::size_t used = 0;
  for (const char c : text) {
    if ((c & 0xc0) != 0x80 && ++used >= columns) break;
    out += c;
  }
  return out + "…";
}

std::vector<std::string> wrapped(std::string_view text, std::size_t columns) {
  std::vector<std::string> lines;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
    if (text.empty()) return lines;
    const auto word = text.substr(0, text.find_first_of(" \n"));
    text.remove_prefix(word.size());
    if (lines.empty() || columns_of(lines.back()) + 1 + columns_of(word) > columns)
      lines.emplace_back(word);
    else
      (lines.back() += ' ') += word;
  }
}

}  // namespace terrace::cli
