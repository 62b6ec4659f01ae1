// Parses JSON and refuses an object that has a key twice. Other parsers silently keep one of the two, and in an index of
// weights that would be the wrong file for a tensor.
//
// Threads: any; pure. Errors: Error with only the reason, as in parse_json().
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

namespace terrace::lm {

nlohmann::json parse_json_with_unique_keys(std::string_view text);

}  // namespace terrace::lm
