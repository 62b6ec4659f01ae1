// The methods of texts, lists, dicts and loops. A call of another Python method is refused by name, and methods that would
// change a value are undefined, as in Jinja's sandbox.
//
// Threads: any. Errors: the calls throw Fault.
#pragma once

#include <optional>
#include <string_view>

#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

std::optional<Value> method_of(const Value& of, std::string_view name, Runtime& runtime);  // bound to `of`; nothing if unknown
bool is_loop_attribute(std::string_view name);
// str.replace(); `most` −1: all occurrences.
Draft replaced(std::string_view text, std::string_view old, std::string_view by, std::int64_t most, Work& work);

}  // namespace terrace::lm::jinja
