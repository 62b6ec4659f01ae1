// Parses a template into statements. Unsupported statements and expressions are refused here. An unknown filter or test is only
// refused when it is used, because templates may first check whether it exists.
//
// Threads: any; pure. Errors: SyntaxFault, with the line.
#pragma once

#include <string_view>

#include <terrace/examples/lm/chat/jinja/tree.h>

namespace terrace::lm::jinja {

struct Parsed {
  Body body;
  bool marks_answers = false;  // whether it has {% generation %}
};
Parsed parse(std::string_view source);  // UTF-8

}  // namespace terrace::lm::jinja
