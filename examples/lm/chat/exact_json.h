// Parses JSON with integers of any length, as Python does. An integer that does not fit into 64 bits becomes a binary value
// with its digits; JSON itself has no binary values.
//
// Threads: any; pure. Errors: Error with only the reason.
#pragma once

#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace terrace::lm {

nlohmann::ordered_json parse_exact_json(std::string_view text);

}  // namespace terrace::lm
