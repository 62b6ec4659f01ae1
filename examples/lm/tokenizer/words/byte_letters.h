// The letters that represent bytes in byte-level vocabularies, as GPT-2 defined them: printable Latin-1 characters represent
// themselves, and letters from U+0100 on represent the other bytes.
//
// Threads: any; pure. Errors: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace terrace::lm {

std::uint32_t letter_of_byte(unsigned char byte);
std::string letters_of_bytes(std::string_view bytes);
// Returns nothing if the text has a character that represents no byte.
std::optional<std::string> bytes_of_letters(std::string_view letters);

}  // namespace terrace::lm
