// A picture of one step of a pipeline's ranks on one time axis. Each lane has two rows, one above the other: simulated and
// measured.
//
// Threads: any. Errors: none.
#pragma once

#include <span>
#include <string>

#include <terrace/examples/terrace/plan/trace_window.h>

namespace terrace::cli {

struct RankLanes {
  TraceWindow simulated = {}, measured = {};
};

// The steps of all ranks end at the same time, because the ranks exchange results there. Rows are therefore aligned at their
// ends, so that the clocks of several machines need not agree. The longest row begins at the left end of the axis; the
// background of a row shows how long its step is.
std::string lanes_picture(std::span<const RankLanes> ranks, const std::string& title);

}  // namespace terrace::cli
