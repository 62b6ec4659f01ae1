// terrace plan --pp: the memory and data movement of each rank of a pipeline, and the time of a step with the waits between
// ranks.
//
// Threads: main's. Errors: as plan_command(); the message names a rank whose layers do not fit.
#pragma once

#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/exit_codes.h>
#include <terrace/parallel/plan/plan.h>

namespace terrace::cli {

// Seconds of a step, with the moves, updates and messages of all ranks. If these are too many to simulate, `together` is false
// and the time is a lower bound: the schedule alone.
struct PipelineStep {
  double seconds = 0;
  bool together = false;
};
PipelineStep step_of_pipeline(const PlanRequest& request, const std::vector<Plan>& ranks, const Model& model,
                              const MachineProfile& profile);

// `profile`: of this machine, or of a rank of the cluster that `config` is for.
Exit plan_pipeline(const PlanOptions& options, const RunConfig& config, const MachineProfile& profile);

}  // namespace terrace::cli
