// Estimates a configuration by arithmetic before it is planned: about how long a step takes, a time that no plan can beat, and
// whether a tier is too small for any plan.
//
// The seconds and bytes come from the planner's own programs and costs, for a model of one block and two micro-batches.
// Arithmetic adds the rest: the numbers of blocks and micro-batches, the schedule of a pipeline, what hides behind what, and
// what must leave the device. docs/reference/cluster.md has the rules.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) for a configuration that a run would refuse.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/memory/tier.h>

namespace terrace::cli {

struct Estimate {
  double step_s = 0;   // of an update, roughly
  double least_s = 0;  // the computing of the busiest rank: a simulated step takes at least this. 0: not known
  // If not 0, no plan fits: `tier` lacks at least this many bytes.
  std::uint64_t missing_bytes = 0;
  Tier tier{};
};

// `config`: with numbers of tiles. A plan should refuse whatever is refused here, but no test shows it yet.
Estimate estimate_plan(const RunConfig& config, const MachineProfile& profile);

}  // namespace terrace::cli
