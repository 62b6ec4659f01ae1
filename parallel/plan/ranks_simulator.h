// Times the programs of a pipeline's ranks together, including moves and messages. A walk's decisions do not depend on time, so
// each rank is walked alone, as in its plan. Then a Simulator for each rank times the decided actions; a message starts when
// its sender and its receiver are both ready.
//
// Pure. Threads: any. Errors: DoesNotFit, as the walks; Error(ErrorKind::failed) for messages without a matching end.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <terrace/parallel/plan/plan.h>

namespace terrace::planning {

struct RanksLife {
  std::uint64_t steps = 4;
  bool drain_at_end = false;             // each step's update runs after its last backward, not in the next step
  std::vector<Trace>* traces = nullptr;  // one for each rank, of the last step; or null
};
struct RanksTimes {
  std::vector<double> step_s;               // from one step's end to the next one's end, on the slowest rank
  std::vector<walk::SimulatedTimes> ranks;  // of the last step, until its last computation
  [[nodiscard]] double bubble() const;      // of the last step: the share of all ranks' time that they do not compute
};

// `plans`: one for each rank; all must fit. `costs_of` returns the costs of a rank's actions.
using CostsOf = std::function<std::unique_ptr<walk::CostModel>(const StepMap& map)>;
RanksTimes simulate_ranks(std::span<const Plan> plans, const Model& model, const CostsOf& costs_of,
                          const MachineProfile& profile, const RanksLife& life);

}  // namespace terrace::planning
