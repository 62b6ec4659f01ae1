// JSON with integers of any length, as Python reads it: one that does not fit into 64 bits is a binary value, which JSON does
// not have otherwise, with its digits.
//
// Threads: any; pure. Errors: Error with only the reason.
#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace terrace::lm {

nlohmann::ordered_json parse_exact_json(std::string_view text);

}  // namespace terrace::lm
