// The life of an engine, walked and timed before there is one: fill, steps, evaluations, commits, visit.
//
// Pure. Threads: any. Errors: DoesNotFit.
#pragma once

#include <terrace/parallel/plan.h>

namespace terrace {

inline constexpr std::uint64_t kWalkedSteps = 12;    // of a life that is only tried
std::uint64_t actions_of(const Programs& programs);  // of a step

struct Life {
  std::uint64_t most_steps = 0;  // 0: kWalkedSteps, or fewer where a step has very many actions
  Trace* trace = nullptr;        // of the last step
  bool steps_only = false;       // it ends with the last step
};

struct DryRun {
  PerTier<std::uint64_t> peak{}, extent{};
  std::vector<Traffic> steps;
  SimulatedTimes times;    // of a step in the mean, with its part of an average
  SimulatedTimes average;  // of the last one
  Traffic average_traffic;
  Traffic commit;
  double commit_seconds = 0;
};

DryRun dry_run(const StepMap& map, const PlanRequest& request, const Programs& programs, const Budget& capacity,
               std::uint32_t generations, const CostModel& costs, const MachineProfile& profile, const Life& life = {});

}  // namespace terrace
