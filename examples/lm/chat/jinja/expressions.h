// Parses the expressions of a template by recursive descent: one function per precedence level, the lowest first.
//
// Owner: the statement parser. Threads: as the parser. Errors: SyntaxFault, with the line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/chat/jinja/cursor.h>
#include <terrace/examples/lm/chat/jinja/tree.h>

namespace terrace::lm::jinja {

class Expressions : protected Cursor {
 protected:
  using Cursor::Cursor;

  // Parses one expression, or several separated by commas, which form a tuple, up to one of the names in `ends`.
  Part tuple(bool with_choice, Words ends, bool in_brackets);
  [[nodiscard]] bool is_tuple_end(Words ends) const;
  Part expression();
  // Parses |filter|filter…; if `begun`, the first | has already been taken.
  Part filters(Part of, bool begun);

  int in_macros_ = 0;
  bool caller_is_used_ = false;  // in the macro that is being parsed

 private:
  using Kind = Expression::Kind;

  Part either();
  Part both();
  Part inverse();
  Part compare();
  Part sum();
  Part concat();
  Part product();
  Part power();
  Part unary(bool with_filters);
  Part primary();
  Part list(int line);
  Part dict(int line);
  std::int64_t integer();

  // Parses what follows a value: attributes, items and calls; then filters and tests.
  Part behind(Part out);
  Part subscript(Part of, int line);
  Part call(Part of);
  void arguments(Expression& of);
  Part filters_and_tests(Part out);
  Part test(Part of);
  std::string dotted_name();

  Part node(Kind kind, int line, std::vector<Part> parts = {}) const;
  template <class... Parts>
  Part node_of(Kind kind, int line, Parts... parts) const;
  Part constant(Value value, int line) const;
  void grown(Expression& out) const;
};

}  // namespace terrace::lm::jinja
