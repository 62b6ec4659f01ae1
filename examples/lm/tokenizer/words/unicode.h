// Classes of code points for the patterns of tokenizers, from a table of the Unicode database (version 16.0, see
// generate_unicode_tables.py).
//
// Threads: any; the table is expanded once, at the first call. Errors: none: an invalid UTF-8 byte is a character of one byte
//          with the class `other`.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace terrace::lm {

// \p{L} is upper (\p{Lu} and \p{Lt}), lower (\p{Ll}) and letter (\p{Lm} and \p{Lo}); \s is space and newline (\n and \r).
enum class CharClass : std::uint8_t { other, upper, lower, letter, mark, number, space, newline };

inline constexpr std::uint32_t kNoCodePoint = 0xffffffff;

class UnicodeTable {
 public:
  static const UnicodeTable& get();

  [[nodiscard]] CharClass class_of(std::uint32_t code) const { return static_cast<CharClass>(entry(code) & 7U); }
  // True if NFC may replace this character, move it, or join it with a character before it.
  [[nodiscard]] bool may_change(std::uint32_t code) const { return (entry(code) & 8U) != 0; }

 private:
  UnicodeTable();
  [[nodiscard]] unsigned entry(std::uint32_t code) const {
    return code < 0x110000 ? blocks_[static_cast<std::size_t>(index_[code >> 8U]) << 8U | (code & 0xffU)] : 0;
  }
  std::array<std::uint16_t, 0x1100> index_{};
  std::string blocks_;  // of 256 entries each; equal blocks are stored once
};

struct Character {
  std::uint32_t code = kNoCodePoint;  // kNoCodePoint: no valid character begins with this byte
  std::uint32_t bytes = 1;
};

// The character at `at`, which must be before `end`. Over-long forms, surrogates and incomplete characters are invalid.
inline Character character_at(const char* at, const char* end) {
  const auto byte = [&](int i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(at[i])); };
  const auto more = [&](int i) { return (byte(i) & 0xc0U) == 0x80U; };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  const auto left = end - at;
  if (first < 0xc2) return {};
  if (first < 0xe0) return left >= 2 && more(1) ? Character{(first & 0x1fU) << 6U | (byte(1) & 0x3fU), 2} : Character{};
  if (first < 0xf0) {
    if (left < 3 || !more(1) || !more(2)) return {};
    const std::uint32_t code = (first & 0xfU) << 12U | (byte(1) & 0x3fU) << 6U | (byte(2) & 0x3fU);
    return code >= 0x800 && (code < 0xd800 || code >= 0xe000) ? Character{code, 3} : Character{};
  }
  if (first >= 0xf5 || left < 4 || !more(1) || !more(2) || !more(3)) return {};
  const std::uint32_t code = (first & 0x7U) << 18U | (byte(1) & 0x3fU) << 12U | (byte(2) & 0x3fU) << 6U | (byte(3) & 0x3fU);
  return code >= 0x10000 && code < 0x110000 ? Character{code, 4} : Character{};
}

// The code of the last character of a text; kNoCodePoint if the text does not end with a valid character.
std::uint32_t last_character(std::string_view text);

void append_utf8(std::string& text, std::uint32_t code);

}  // namespace terrace::lm
