// Times the programs of a pipeline's ranks together, moves and messages included. A walk's decisions depend on nobody's time,
// so every rank is walked alone, as in its plan; then what the walks decided is timed, each rank's by a Simulator of its own,
// and a message starts when its sender and its receiver are both ready for it.
//
// Pure. Threads: any. Errors: DoesNotFit, as the walks; Error(Exit::runtime) for messages that never meet.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <terrace/parallel/plan.h>

namespace terrace {

struct RanksLife {
  std::uint64_t steps = 4;
  bool drain_at_end = false;             // each step's update stands behind its last backward, not in the next step
  std::vector<Trace>* traces = nullptr;  // one a rank, of the last step; or none
};
struct RanksTimes {
  std::vector<double> step_s;           // from one step's end to the next one's, of the ranks' last
  std::vector<SimulatedTimes> ranks;    // of the last step, until its last computation
  [[nodiscard]] double bubble() const;  // of the last step: the share of all ranks' time that they do not compute
};

// One plan a rank, of fitting plans; `request` is theirs. `costs_of` gives what each rank's actions cost.
using CostsOf = std::function<std::unique_ptr<CostModel>(const StepMap& map)>;
RanksTimes simulate_ranks(std::span<const Plan> plans, const Model& model, const CostsOf& costs_of,
                          const MachineProfile& profile, const RanksLife& life);

}  // namespace terrace
