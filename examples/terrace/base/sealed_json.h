// JSON objects whose last member is a checksum of all bytes before it: a flipped bit in a run's records is found, and they stay
// readable for every other program.
//
//   {"loss":5.5,"step":1,"xxh3":"a5319561935ebd97"}
//
// Threads: any; pure.
// Errors:  parse_sealed() throws Error with only the reason; the caller adds the file and the remedy. An object with another
//          `version` is not damaged: Error(ErrorKind::refused), with the remedy.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace terrace::cli {

inline constexpr std::uint64_t kRecordVersion = 1;  // also that of an object without a member `version`

std::string seal(const nlohmann::json& object);           // on one line, without a newline
std::string seal_indented(const nlohmann::json& object);  // for a file of its own

// The object without its checksum. A text without a checksum is accepted: older versions wrote none, and a user who edits a
// file removes that member.
nlohmann::json parse_sealed(std::string_view text);

}  // namespace terrace::cli
