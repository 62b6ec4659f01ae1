// Equality, order and membership of values, as in Python.
//
// Threads: any. Errors: Fault for values that have no order.
#pragma once

#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

bool equal(const Value& a, const Value& b, Work& work);
bool less(const Value& a, const Value& b, Work& work);           // a < b
bool less_or_equal(const Value& a, const Value& b, Work& work);  // differs from !(b < a) if one of them is NaN
bool contains(const Value& in, const Value& item, Runtime& runtime);
bool is_hashable(const Value& value, Work& work);  // whether it can be a dict key

}  // namespace terrace::lm::jinja
