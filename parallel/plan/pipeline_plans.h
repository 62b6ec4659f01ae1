// The plans of all ranks of a pipeline: with a given schedule, or with the fastest one that fits; and the time of their step.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) as plan() and the checks of programs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <terrace/core/machine/machine.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/plan/plan.h>

namespace terrace::planning {

// Stages whose layers take about the same time on the machine: Pipeline::begins.
std::vector<std::uint32_t> balanced_stages(const PlanRequest& request, const Model& model, const pipeline::Schedule& schedule,
                                           const MachineProfile& profile);
// Sets request.pipeline. The engine computes the steps between two drains of an asynchronous schedule as one, so the request's
// steps are then counted in these.
void set_pipeline(PlanRequest& request, pipeline::Pipeline pipeline);
// How many steps of the run the engine computes as one: with an asynchronous schedule, those until it drains, else 1.
std::uint64_t updates_a_step(const PlanRequest& request);

// The plan of each rank of request.pipeline. If all fit, they are checked together.
std::vector<Plan> plan_ranks(PlanRequest& request, const Model& model, const MachineProfile& profile, ThreadPool& pool);

struct FoundSchedule {
  std::string name;         // "1f1b", "interleaved, 2 stages a rank", "list in a V, at most 8 live"
  std::vector<Plan> plans;  // of each rank. If no schedule fits, those of the last one tried
};
// Sets request.pipeline to the fastest schedule for request.mesh.pp ranks with which all plans fit.
FoundSchedule search_schedule(PlanRequest& request, const Model& model, const MachineProfile& profile, ThreadPool& pool);

// Seconds of a step, with the moves, updates and messages of all ranks. If these are too many to simulate, `together` is false
// and the time is a lower bound: the schedule alone.
struct PipelineStep {
  double seconds = 0;
  bool together = false;
};
PipelineStep step_of_pipeline(const PlanRequest& request, const std::vector<Plan>& ranks, const Model& model,
                              const MachineProfile& profile);

}  // namespace terrace::planning
