// A picture of one step of a pipeline's ranks as it was simulated and as it was measured: two rows a lane, one above the other,
// on one axis of time.
//
// Threads: any. Errors: none.
#pragma once

#include <span>
#include <string>

#include <terrace/examples/terrace/trace_window.h>

namespace terrace::cli {

struct RankLanes {
  TraceWindow simulated = {}, measured = {};
};

// The ranks' steps end together, because they share their results there: rows of one kind are aligned at their ends, so that
// clocks of several machines need not agree. The longest of each kind begins at the axis's left end, and a row's ground says
// how far its step reaches.
std::string lanes_picture(std::span<const RankLanes> ranks, const std::string& title);

}  // namespace terrace::cli
