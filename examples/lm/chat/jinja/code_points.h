// Texts as Python has them: sequences of code points. A byte that is not UTF-8 is a code point of its own and comes back as it
// was, as with Python's surrogateescape.
//
// Threads: any; pure. Errors: none.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::lm::jinja {

std::u32string decoded(std::string_view text);
std::string encoded(std::u32string_view text);
void append_code_point(std::string& out, char32_t code);
std::size_t code_points(std::string_view text);

bool is_white(char32_t code);      // str.isspace()
bool is_line_end(char32_t code);   // of str.splitlines()
bool is_printable(char32_t code);  // str.isprintable()

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalized(std::string_view text);   // str.capitalize()
std::string titled(std::string_view text);        // str.title()
std::string words_titled(std::string_view text);  // Jinja's filter `title`, which cuts words elsewhere

// str.strip(), lstrip() and rstrip(): of white space, or of the code points in `of`.
std::string_view stripped(std::string_view text, bool left, bool right, std::optional<std::string_view> of = {});

// str.split(): at white space without a separator. At most `most` cuts; −1: any number. The separator is not empty.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, long most);
std::vector<std::string_view> split_from_end(std::string_view text, std::optional<std::string_view> separator, long most);
std::vector<std::string_view> lines(std::string_view text, bool keep_ends);

// repr(str): in quotes, with escapes.
void append_quoted(std::string& out, std::string_view text);

}  // namespace terrace::lm::jinja
