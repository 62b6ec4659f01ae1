// JSON from a file that may be damaged or foreign: the library's own exceptions never reach a user.
//
// Threads: any; pure. Errors: Error with only the reason.
#pragma once

#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/error.h>
#include <terrace/core/base/nesting.h>

namespace terrace::base {

template <class Json = nlohmann::json>
Json parse_json(std::string_view text) try {
  demand_shallow_json(text);
  return Json::parse(text);
} catch (const nlohmann::json::parse_error& error) {
  throw Error(fmt::format("it is not JSON from its byte {} on", error.byte));
} catch (const nlohmann::json::exception&) {  // a number that no double can hold
  throw Error("it has a number that is too large");
}

}  // namespace terrace::base
