// The filters (x|name) and the tests (x is name).
//
// Threads: any. Errors: Fault, also for an unknown name.
#pragma once

#include <string_view>

#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

Value apply_filter(std::string_view name, const Value& to, Arguments& given, Runtime& runtime);
bool apply_test(std::string_view name, const Value& to, Arguments& given, Runtime& runtime);

}  // namespace terrace::lm::jinja
