#include <terrace/examples/terrace/text_columns.h>

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

}  // namespace terrace::cli
