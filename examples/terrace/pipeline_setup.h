// From --pp, --schedule, --virtual-stages and --stage-layers to the pipeline that a plan request has.
//
// Threads: any. Errors: Error(Exit::usage) for what cannot be, with the nearest that can.
#pragma once

#include <string>

#include <terrace/core/machine.h>
#include <terrace/examples/terrace/run_config.h>
#include <terrace/parallel/plan.h>

namespace terrace::cli {

// Nothing with --pp 1. Stages are what --stage-layers says, else as even as the layers' costs on this machine allow.
void set_pipeline(PlanRequest& request, const RunConfig& config, const Model& model, const MachineProfile& profile);
// Steps of the run in one of the engine's: an asynchronous order's until it drains, else 1.
std::uint64_t updates_a_step(const PlanRequest& request);
// "3,4,4": how many layers each stage has, as --stage-layers takes it.
std::string stage_layers(const pipeline::Pipeline& pipeline);
// The stages of the run that the configuration resumes, if it has as many as this one: what a stage has is on its ranks' disks.
std::string stage_layers_of_run(const RunConfig& config);

}  // namespace terrace::cli
