// Chooses the settings that a request leaves open: the order of a step, which layers recompute or offload their activations,
// and which ones update their weights in the backward, early or not, or before their next use.
//
// Candidates are walked and timed by the planner's own simulator, with the same budgets and the same machine profile, but with
// coarse chunks and few steps, so that each takes milliseconds. The best few are compared with fine chunks. The plan of the
// chosen candidate is exact. With a thread pool, independent candidates are simulated in parallel; the choice does not depend
// on it.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) for requests that make no sense.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/core/machine/machine.h>
#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/plan/plan_request.h>
#include <terrace/parallel/walk/simulator.h>

namespace terrace {
class ThreadPool;
}  // namespace terrace

namespace terrace::planning {

// The order of a step, how many layers recompute or offload their activations, and when layers update: without clipping, how
// many do before their next use; with clipping, how many do early.
struct StepChoice {
  Order order = Order::horizontal;
  std::uint32_t group = 0;
  std::uint32_t recompute = 0, offload = 0, deferred = 0, early = 0;  // layers
  friend bool operator==(const StepChoice&, const StepChoice&) = default;
};
// "vertical in groups of 4, 12 layers recompute, all offload"
std::string to_text(const StepChoice& choice, std::uint32_t layers);
struct TriedChoice {
  StepChoice choice;
  std::optional<double> seconds = {};  // of a step; empty: the choice does not fit
};

bool leaves_open(const PlanRequest& request, const MachineProfile& profile);
// The request's own choice; settings that the request leaves open get the simplest value.
StepChoice choice_of(const PlanRequest& request);

struct RankedChoice {
  StepChoice choice;
  std::uint32_t prefetch_depth = kAutoDepth;  // kAutoDepth: the exact plan searches for it
  std::optional<UpdatePlace> update = {};     // where updates run; empty: as in the request
};
PlanRequest with_choice(const PlanRequest& request, const RankedChoice& ranked);

struct Choices {
  std::vector<RankedChoice> best;  // never empty. Best first; if nothing fits, the one that needs the least memory
  std::vector<TriedChoice> tried;  // in the order of trial
};
// True if the step is compute-bound, so that deeper prefetching cannot help.
bool bound_by_compute(const walk::SimulatedTimes& times);
// True if updates that the request leaves open must run on the host: the optimizer's bits on the GPU differ from the host's,
// and a budget may never change bits.
bool updates_on_host_only(const PlanRequest& request, const MachineProfile& profile);
// Takes the simplest of the equally fast choices: horizontal before groups before vertical, keeping before recomputing before
// offloading. A less simple choice wins if it is faster by more than 1 %.
Choices choose(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool = nullptr);

}  // namespace terrace::planning
