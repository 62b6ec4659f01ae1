#include <terrace/examples/lm/tokenizer/words/byte_letters.h>

#include <array>

#include <terrace/examples/lm/tokenizer/words/unicode.h>

namespace terrace::lm {
namespace {

constexpr std::uint32_t kFirstOther = 0x100;

constexpr bool is_own_letter(unsigned byte) { return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad); }

struct Letters {
  std::array<std::uint32_t, 256> of_byte{};
  std::array<int, 0x200> byte_of{};
};
constexpr Letters kLetters = [] {
  Letters letters;
  for (auto& byte : letters.byte_of) byte = -1;
  std::uint32_t others = 0;
  for (unsigned byte = 0; byte < 256; ++byte) {
    letters.of_byte[byte] = is_own_letter(byte) ? byte : kFirstOther + others++;
    letters.byte_of[letters.of_byte[byte]] = static_cast<int>(byte);
  }
  return letters;
}();

}  // namespace

std::uint32_t letter_of_byte(unsigned char byte) { return kLetters.of_byte[byte]; }

std::string letters_of_bytes(std::string_view bytes) {
  std::string letters;
  for (const char byte : bytes) append_utf8(letters, letter_of_byte(static_cast<unsigned char>(byte)));
  return letters;
}

std::optional<std::string> bytes_of_letters(std::string_view letters) {
  std::string bytes;
  const char* const end = letters.data() + letters.size();
  for (const char* at = letters.data(); at < end;) {
    const auto c = character_at(at, end);
    if (c.code >= kLetters.byte_of.size() || kLetters.byte_of[c.code] < 0) return {};
    bytes += static_cast<char>(kLetters.byte_of[c.code]);
    at += c.bytes;
  }
  return bytes;
}

}  // namespace terrace::lm
