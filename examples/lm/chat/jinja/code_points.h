// Texts as Python has them: sequences of code points. A byte that is not UTF-8 is a code point of its own and comes back as it
// was, as with Python's surrogateescape.
//
// Threads: any; pure, apart from the work that is charged. Errors: Fault if that is too much.
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
Draft words_titled(std::string_view text, Work& work);  // Jinja's filter `title`, which cuts words elsewhere

// str.strip(), lstrip() and rstrip(): of white space, or of the code points in `of`.
std::string_view stripped(std::string_view text, bool left, bool right);
std::string_view stripped_of(std::string_view text, bool left, bool right, std::string_view of, Work& work);

// str.split(): at white space without a separator. At most `most` cuts; −1: any number. The separator is not empty.
std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator, long most, Work& work);
std::vector<std::string_view> split_from_end(std::string_view text, std::optional<std::string_view> separator, long most,
                                             Work& work);
std::vector<std::string_view> lines(std::string_view text, bool keep_ends, Work& work);

// text[first], text[first + step], …: so many code points, all of them in the text.
Draft picked(std::string_view text, std::int64_t first, std::int64_t step, std::int64_t count, Work& work);

// repr(str): in quotes, with escapes.
void append_quoted(Draft& out, std::string_view text);
// \x0a, \u2028: a letter, and so many hexadecimal digits.
void append_escape(Draft& out, char letter, std::uint32_t number, int digits);

}  // namespace terrace::lm::jinja
