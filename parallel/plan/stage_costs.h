// How long a pipeline's tasks take: the seconds of its stages' layers on a machine, and of the reductions of gradients between
// ranks that share a stage, over the machine's links.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) for pipelines for which no program can be written.
#pragma once

#include <vector>

#include <terrace/core/machine/machine.h>
#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/simulate.h>

namespace terrace::pipeline {

// The costs by which stages are balanced: forward and backward of each layer for one micro-batch, with the exchanges that are
// phases of its calls, such as those of tensor ranks. `options`: those of any rank.
std::vector<double> layer_costs(const Model& model, const StepMap::Options& options, const MachineProfile& profile);

StageCosts stage_costs(const Pipeline& pipeline, const Model& model, const StepMap::Options& options,
                       const MachineProfile& profile);

// A lower bound of the step time for orders that end in a barrier: a rank waits for the forwards of all earlier stages, and
// then does its own work.
double shortest_step(const Schedule& schedule, const StageCosts& costs);

}  // namespace terrace::pipeline
