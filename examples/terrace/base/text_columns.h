// The width of text on a terminal.
//
// Threads: any; pure. Errors: none.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::cli {

// Counts the characters of UTF-8. Names with wide characters may be cut too late, which only wraps a line.
std::size_t columns_of(std::string_view text);
// The text, or its beginning and "…".
std::string cut(std::string_view text, std::size_t columns);
// Lines of at most `columns` columns, broken at spaces. A longer word has a line of its own.
std::vector<std::string> wrapped(std::string_view text, std::size_t columns);

}  // namespace terrace::cli
