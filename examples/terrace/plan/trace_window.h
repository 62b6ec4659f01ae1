// One step of a trace: its spans by lane and its counters, read from trace.json or taken from a simulated run.
//
// Threads: any. Errors: Error that names the file if it is not a trace.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/base/trace.h>

namespace terrace::cli {

struct TraceWindow {
  struct Span {
    std::string name;
    double begin_s = 0, end_s = 0;
  };
  struct Row {
    std::string lane;
    std::vector<Span> spans;  // ordered by begin
    double busy_s = 0;        // overlaps are counted once
  };
  struct Counter {
    std::string name;
    std::vector<std::pair<double, double>> values;  // time and value; the first is the value at the window's begin
    double peak = 0;
  };
  double seconds = 0;  // the window's length; all times count from its begin
  std::vector<Row> rows;
  std::vector<Counter> counters;
};

// Reads the last span of the lane "step", or else the last `step_time_s` seconds of computing, or else everything.
TraceWindow read_trace_window(const std::filesystem::path& file, double step_time_s);
// The spans in the last `seconds` before `end_s`, without counters.
TraceWindow window_of(const Trace& trace, double end_s, double seconds);

}  // namespace terrace::cli
