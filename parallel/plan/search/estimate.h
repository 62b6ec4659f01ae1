// Estimates a candidate by arithmetic before it is planned: about how long a step takes, a time that no plan can beat, and
// whether a tier is too small for any plan.
//
// The seconds and bytes come from the planner's own programs and costs, for the layers that repeat and two
// micro-batches. Arithmetic adds the rest: the numbers of layers and micro-batches, the schedule of a pipeline, what hides
// behind what, and what must leave the device. docs/reference/cluster.md has the rules.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) for a candidate that a run would refuse.
#pragma once

#include <cstdint>

#include <terrace/core/machine/machine.h>
#include <terrace/memory/tier.h>
#include <terrace/parallel/plan/search/searched_run.h>

namespace terrace::planning {

struct Estimate {
  double step_s = 0;   // of an update, roughly
  double least_s = 0;  // the computing of the busiest rank: a simulated step takes at least this. 0: not known
  // If not 0, no plan fits: `tier` lacks at least this many bytes.
  std::uint64_t missing_bytes = 0;
  Tier tier{};
};

// A plan should refuse whatever is refused here, but no test shows it yet.
Estimate estimate_plan(const SearchedRun& run, const Candidate& candidate, const MachineProfile& profile);

}  // namespace terrace::planning
