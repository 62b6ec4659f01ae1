// The operations of expressions: arithmetic, subscripts and attributes, as in Python and in Jinja's sandbox.
//
// Threads: any. Errors: Fault.
#pragma once

#include <string_view>

#include <terrace/examples/lm/chat/jinja/tree.h>
#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

void demand_small(const Value& value);  // Fault for an integer that does not fit into 64 bits
Value arithmetic(Expression::Kind kind, const Value& a, const Value& b, Runtime& runtime);
Value negative(const Value& value);
Value positive(const Value& value);
bool compare(Compared how, const Value& a, const Value& b, Runtime& runtime);
void append_escaped(Draft& out, std::string_view text);  // & < > ' " as in HTML

// a.name and a[key]; undefined if absent.
Value attribute_of(const Value& of, const Value& name, Runtime& runtime);  // `name` is a text
Value item_of(const Value& of, const Value& key, Runtime& runtime);
Value slice_of(const Value& of, const Value& start, const Value& stop, const Value& step, Runtime& runtime);  // None: absent

}  // namespace terrace::lm::jinja
