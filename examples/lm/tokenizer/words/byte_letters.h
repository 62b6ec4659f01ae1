// The letters that stand for bytes in byte-level vocabularies: printable Latin-1 characters for themselves, U+0100 and up for
// the others, as GPT-2 defined them.
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
// Nothing if the text has a character that stands for no byte.
std::optional<std::string> bytes_of_letters(std::string_view letters);

}  // namespace terrace::lm
