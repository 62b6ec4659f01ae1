// JSON in which no object may have a key twice. Of two, a parser keeps one and says nothing, and in an index of weights that is
// the place of a tensor.
//
// Threads: any; pure. Errors: Error with only the reason, as parse_json().
#pragma once

#include <string_view>

#include <nlohmann/json.hpp>

namespace terrace::lm {

nlohmann::json parse_json_with_unique_keys(std::string_view text);

}  // namespace terrace::lm
