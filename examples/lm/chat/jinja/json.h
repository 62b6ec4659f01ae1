// JSON as values, and values as JSON: json.dumps() of Python, which Hugging Face's library uses for the filter `tojson`.
//
// Threads: any. Errors: Fault for a value that is none of JSON's, and for an integer of more than 64 bits.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/lm/chat/jinja/value.h>

namespace terrace::lm::jinja {

struct JsonForm {
  std::optional<std::string> indent;  // of each level; absent: all in one line
  std::string between = ", ", after_key = ": ";
  bool only_ascii = false, sorts_keys = false;
};
std::string to_json(const Value& value, const JsonForm& form, Runtime& runtime);
Value from_json(const nlohmann::ordered_json& json);

}  // namespace terrace::lm::jinja
