// The picture of `terrace top`: lines of text about runs, for a terminal of some width.
//
// Threads: any; pure. Errors: none.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <terrace/examples/terrace/report/run_status.h>

namespace terrace::cli {

struct FrameOptions {
  std::size_t columns = 80;
  std::size_t rows = 0;  // 0: as many as are needed
  bool color = false;
};

// No line is wider than `columns`: long ones are wrapped between words. All text of a run is escaped.
std::vector<std::string> top_frame(std::span<const RunStatus> runs, const FrameOptions& options);

// One character for each of `cells` equal parts of the values: their mean, from the lowest to the highest. NaN is a gap.
std::string sparkline(std::span<const double> values, std::size_t cells);

}  // namespace terrace::cli
