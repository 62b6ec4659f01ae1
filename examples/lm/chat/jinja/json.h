// From JSON to values and back. The latter is Python's json.dumps(), which Hugging Face's library uses for the filter `tojson`.
//
// Threads: any. Errors: Fault for a value that JSON does not have.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

struct JsonForm {
  std::optional<std::string> indent;  // of each level; absent: everything in one line
  std::string between = ", ", after_key = ": ";
  bool only_ascii = false, sorts_keys = false;
};
Draft to_json(const Value& value, const JsonForm& form, Runtime& runtime);
Value from_json(const nlohmann::ordered_json& json);  // a binary value holds the digits of an integer (exact_json.h)

}  // namespace terrace::lm::jinja
