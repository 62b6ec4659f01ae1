// Walks and times the whole life of an engine before the engine exists: fill, steps, evaluations, commits, visit.
//
// Pure. Threads: any. Errors: DoesNotFit.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/base/trace.h>
#include <terrace/core/machine/machine.h>
#include <terrace/memory/tier.h>
#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/plan/plan_request.h>
#include <terrace/parallel/plan/programs.h>
#include <terrace/parallel/walk/simulator.h>

namespace terrace::planning {

inline constexpr std::uint64_t kWalkedSteps = 12;    // of a candidate that is only compared
inline constexpr std::uint64_t kFewestSteps = 4;     // even if a step has very many actions
std::uint64_t actions_of(const Programs& programs);  // in a step

struct Life {
  std::uint64_t most_steps = 0;  // 0: kWalkedSteps, or fewer if a step has very many actions
  Trace* trace = nullptr;        // receives the last step
  bool steps_only = false;       // the walk ends with the last step
  bool resumed = false;          // the life begins with all state on disk, as a commit left it
};

struct DryRun {
  PerTier<std::uint64_t> peak{}, extent{};
  std::vector<memory::Traffic> steps;
  walk::SimulatedTimes times;    // mean of a step, including its share of a weight average
  walk::SimulatedTimes average;  // of the last weight average
  memory::Traffic average_traffic;
  memory::Traffic commit;
  double commit_seconds = 0;
  double commit_added_seconds = 0;  // as Plan has it
  double restoring_seconds = 0;     // as Plan has it
};

DryRun dry_run(const StepMap& map, const PlanRequest& request, const Programs& programs, const Budget& capacity,
               std::uint32_t generations, const walk::CostModel& costs, const MachineProfile& profile, const Life& life = {});

}  // namespace terrace::planning
