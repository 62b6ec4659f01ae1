// Texts as in Python: sequences of code points. An invalid UTF-8 byte is a code point of its own and is written back unchanged,
// as with Python's surrogateescape.
//
// Threads: any; pure, except that work is charged. Errors: Fault if the work exceeds the limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/chat/jinja/work.h>

namespace terrace::lm::jinja {

struct CodePoint {
  char32_t code = 0;
  std::size_t bytes = 1;
};
CodePoint code_point_at(std::string_view text, std::size_t at);
void append_code_point(Draft& out, char32_t code);
std::size_t code_points(std::string_view text);

bool is_white(char32_t code);      // str.isspace()
bool is_line_end(char32_t code);   // of str.splitlines()
bool is_printable(char32_t code);  // str.isprintable()

Draft upper(std::string_view text, Work& work);
Draft lower(std::string_view text, Work& work);
Draft capitalized(std::string_view text, Work& work);   // str.capitalize()
Draft titled(std::string_view text, Work& work);        // str.title()
Draft words_titled(std::string_view text, Work& work);  // Jinja's filter `title`, whose words are different

// str.strip(), lstrip() and rstrip(): removes white space, or the code points in `of`.
std::string_view stripped(std::string_view text, bool left, bool right);
std::string_view stripped_of(std::string_view text, bool left, bool right, std::string_view of, Work& work);

// str.split(): without a separator it splits at white space. At most `most` cuts; −1: no limit. The separator must not be
// empty.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, long most, Work& work);
std::vector<std::string_view> split_from_end(std::string_view text, std::optional<std::string_view> separator, long most,
                                             Work& work);
std::vector<std::string_view> lines(std::string_view text, bool keep_ends, Work& work);

// text[first], text[first + step], …: `count` code points, which must all be in the text.
Draft picked(std::string_view text, std::int64_t first, std::int64_t step, std::int64_t count, Work& work);

// repr(str): in quotes, with escapes.
void append_quoted(Draft& out, std::string_view text);
// \x0a, \u2028: a letter, then `digits` hexadecimal digits.
void append_escape(Draft& out, char letter, std::uint32_t number, int digits);

}  // namespace terrace::lm::jinja
