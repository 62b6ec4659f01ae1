// The text of a template as statements. What terrace does not have is refused here, where it has a name; a filter or a test of
// an unknown name is only refused when it is used, because templates ask first whether they may.
//
// Threads: any; pure. Errors: SyntaxFault, with the line.
#pragma once

#include <string_view>

#include <terrace/examples/lm/chat/jinja/tree.h>

namespace terrace::lm::jinja {

struct Parsed {
  Body body;
  bool marks_answers = false;  // it has {% generation %}
};
Parsed parse(std::string_view source);  // UTF-8

}  // namespace terrace::lm::jinja
