// What a request leaves open, chosen: the order of a step, and which layers compute their activations again or offload them.
//
// Candidates are walked and timed by the planner's own simulator, on the same budgets and the same machine profile, but with
// coarse chunks and few steps: what is compared is settings of one model, and a candidate takes milliseconds. The plan of the
// one that is taken is exact. Candidates that do not wait for each other's times are simulated side by side where there is a
// pool; what is chosen does not depend on it.
//
// Pure. Threads: any. Errors: Error(Exit::usage) for requests that make no sense.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/plan.h>

namespace terrace {

bool leaves_open(const PlanRequest& request, const MachineProfile& profile);
// What a closed request says; of an open one, what it says and the plainest of the rest.
StepChoice choice_of(const PlanRequest& request);

struct RankedChoice {
  StepChoice choice;
  std::uint32_t prefetch_depth = kAutoDepth;  // kAutoDepth: the exact plan looks for it
  std::optional<UpdatePlace> update = {};     // where updates run; empty: the same
};
PlanRequest with_choice(const PlanRequest& request, const RankedChoice& ranked);

struct Choices {
  std::vector<RankedChoice> best;  // never empty. Best first; where nothing fits, what needs the least
  std::vector<TriedChoice> tried;  // in the order in which they were tried
};
// Whether nothing but less computing makes it faster by what is worth a greater depth.
bool bound_by_compute(const SimulatedTimes& times);
// Budgets change no bits: what a GPU computes otherwise than the host does is the host's, unless somebody says where.
bool updates_on_host_only(const PlanRequest& request, const MachineProfile& profile);
// The plainest choice that is as good as any: horizontal before groups before vertical, keeping before recomputing before
// offloading, unless the other one is faster by more than a hundredth.
Choices choose(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool = nullptr);

}  // namespace terrace
