// Which values are equal, which is less, and which is in which, as in Python.
//
// Threads: any. Errors: Fault for values that have no order.
#pragma once

#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

bool equal(const Value& a, const Value& b, Work& work);
bool less(const Value& a, const Value& b, Work& work);           // a < b
bool less_or_equal(const Value& a, const Value& b, Work& work);  // not the opposite of b < a for numbers that are none
bool contains(const Value& in, const Value& item, Runtime& runtime);
bool is_hashable(const Value& value, Work& work);  // whether it can be a key

}  // namespace terrace::lm::jinja
