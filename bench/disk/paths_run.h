// One pass on several paths at once, and which of them is slow.
//
// Owner:   the caller's targets. Threads: run_together() starts one for each path and joins them.
// Errors:  that of the first path that failed; the passes on the others are then stopped, and nothing is in flight.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/bench/disk/disk_target.h>

namespace terrace::bench {

using DiskTargets = std::vector<std::unique_ptr<DiskTarget>>;

// The pass on one path. `watch` and `ready` are for its DiskPass.
using PathWork = std::function<DiskRun(DiskTarget& target, const DiskPass::Watch& watch, const std::function<void()>& ready)>;
// The runs in the order of the paths; their clocks start together. `watch` gets the bytes moved on all paths; it is called by
// one thread at a time.
std::vector<DiskRun> run_together(const DiskTargets& targets, const DiskPass::Watch& watch, const PathWork& work);

// The runs of all paths as one: its time ends with the last of them.
DiskRun sum_of(const std::vector<DiskRun>& runs);

// The rates of a path, in the same runs as those of the other paths.
struct PathRates {
  std::string path;
  std::vector<double> gb_per_s;
};
struct SlowPath {
  std::string path, fastest;
  double gb_per_s = 0, fastest_gb_per_s = 0;  // medians
};
// The paths whose median is below 80 % of the fastest one's, and whose best run is worse than the worst run of the fastest: a
// smaller difference is usual among drives of one model.
std::vector<SlowPath> slow_paths(const std::vector<PathRates>& paths);
std::string describe(const std::string& op, const SlowPath& slow);

}  // namespace terrace::bench
