// The methods of texts, lists, dicts and loops. Python's other methods are refused by name when they are called, and what would
// change a value is undefined, as in Jinja's sandbox.
//
// Threads: any. Errors: of the calls, Fault.
#pragma once

#include <optional>
#include <string_view>

#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

std::optional<Value> method_of(const Value& of, std::string_view name, Runtime& runtime);  // bound to the value
bool is_loop_attribute(std::string_view name);
// str.replace(); −1: all.
Draft replaced(std::string_view text, std::string_view old, std::string_view by, std::int64_t most, Work& work);

}  // namespace terrace::lm::jinja
