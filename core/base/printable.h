// Makes texts from files and command lines safe to print in a message: a name in a damaged or foreign file may hold escape
// sequences that a terminal would obey, and may be a megabyte long.
//
// Threads: any; pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace terrace::base {

inline constexpr std::size_t kPrintedBytes = 80;

// Control characters are escaped (\n, \x1b, \u202e), bytes that are not UTF-8 are replaced by U+FFFD, and the middle of a long
// text is cut out.
std::string printable(std::string_view text, std::size_t most_bytes = kPrintedBytes);

// The same for a whole message: nothing is cut, and newlines and tabs stay.
std::string printable_lines(std::string_view message);

}  // namespace terrace::base
