// The speed of a bench's tests by second, as curves: a drive whose cache is full, or that throttles, bends down.
//
// Threads: any. Errors: none.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace terrace::cli {

struct TimedRow {
  std::string name;
  nlohmann::ordered_json axis;  // time_axis of the result
};
// A legend and a picture; empty if no test has three seconds or more. At most `most` tests, those with the longest times first.
std::string time_curves(std::vector<TimedRow> rows, std::size_t most);

}  // namespace terrace::cli
