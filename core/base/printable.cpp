#include <terrace/core/base/printable.h>

#include <cstdint>

#include <fmt/format.h>

#include <terrace/core/base/text_file.h>

namespace terrace::base {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0: the next byte is not UTF-8
};

Character first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t bytes = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (bytes > text.size() || !is_utf8(text.substr(0, bytes))) return {};
  std::uint32_t code = bytes == 1 ? lead : lead & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3FU);
  return {code, bytes};
}

// Includes characters that end a line or change the direction of the text around them.
bool is_control(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x200E || code == 0x200F ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  while (!text.empty()) {
    const auto [code, bytes] = first_of(text);
    if (bytes == 0) {
      out += "\uFFFD";
    } else if (!is_control(code) || (code < 0x80 && kept.find(static_cast<char>(code)) != std::string_view::npos)) {
      out += text.substr(0, bytes);
    } else if (code == '\n') {
      out += "\\n";
    } else {
      out += code < 0x80 ? fmt::format("\\x{:02x}", code) : fmt::format("\\u{:04x}", code);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return out;
}

bool continues_a_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

}  // namespace

std::string printable(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return escaped(text, "");
  const auto half = most_bytes / 2;
  auto begin = half, end = text.size() - half;
  while (begin > 0 && continues_a_character(text[begin])) --begin;
  while (end < text.size() && continues_a_character(text[end])) ++end;
  return fmt::format("{}… ({} bytes) …{}", escaped(text.substr(0, begin), ""), text.size(), escaped(text.substr(end), ""));
}

std::string printable_lines(std::string_view message) { return escaped(message, "\n\t"); }

}  // namespace terrace::base
