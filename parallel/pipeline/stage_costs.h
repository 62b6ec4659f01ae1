// How long a pipeline's tasks take: the seconds of its stages' layers on a machine, and of what ranks that share a stage add up
// of its gradient, over the machine's links.
//
// Pure. Threads: any. Errors: Error(Exit::usage) for pipelines that no rank's program can be written for.
#pragma once

#include <vector>

#include <terrace/core/machine.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/step_map.h>

namespace terrace::pipeline {

// Forward and backward of each layer, one micro-batch: what stages are balanced by. `options` are those of any of the ranks.
std::vector<double> layer_costs(const Model& model, const StepMap::Options& options, const MachineProfile& profile);

StageCosts stage_costs(const Pipeline& pipeline, const Model& model, const StepMap::Options& options,
                       const MachineProfile& profile);

// No order that ends in a barrier takes less: a rank waits for the forwards of all stages before its first one, and then has
// its own work to do.
double shortest_step(const Schedule& schedule, const StageCosts& costs);

}  // namespace terrace::pipeline
