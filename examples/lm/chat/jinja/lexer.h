// Splits a template into tokens, with the settings of Hugging Face's library. Removed are the newline after a statement
// (trim_blocks), white space before a statement that begins its line (lstrip_blocks), and the newline at the end of the
// template.
//
// Threads: any; pure. Errors: SyntaxFault, with the line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/chat/jinja/fault.h>

namespace terrace::lm::jinja {

struct SyntaxFault : Fault {
  int line = 0;
};

struct Token {
  enum class Kind : std::uint8_t {
    data,         // text between the tags
    block_begin,  // {%
    block_end,
    output_begin,  // {{
    output_end,
    name,
    integer,
    real,
    text,  // a literal, without quotes and escapes
    mark,  // an operator or bracket
    end,   // of the template
  };
  Kind kind = Kind::end;
  std::string text;  // as written; for `text`, the literal's value
  int line = 1;

  [[nodiscard]] bool is_mark(std::string_view mark) const { return kind == Kind::mark && text == mark; }
  [[nodiscard]] bool is_name(std::string_view name) const { return kind == Kind::name && text == name; }
};

// The last token has the kind `end`. `source` must be UTF-8.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace terrace::lm::jinja
