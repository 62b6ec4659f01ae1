// Measures how long a model's actions take on this machine: runs each distinct action on scratch memory, with nothing else
// running.
//
// The simulator then times programs with these costs instead of FLOPs ÷ rate. A plan's decisions do not depend on them, so the
// same request and profile always give the same moves.
//
// Owner:   none; the scratch memory is as large as the largest single action and is freed at the end.
// Threads: the caller's, and the device's own. Errors: those of the layers and of allocation.
#pragma once

#include <terrace/core/device/device.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/run/compute.h>
#include <terrace/parallel/walk/simulator.h>

namespace terrace::running {

struct MeasureLimits {
  // The actions are spread over this memory, as over a device budget, so that caches help no more than in a step.
  std::uint64_t memory_bytes = 64 * kMiB;
  std::uint64_t upload_bytes = 0;           // of a step: an action's input is uploaded before it in the same proportion
  double action_s = 2;                      // an action with a longer estimate keeps it,
  std::uint64_t action_bytes = 256 * kMiB;  // and so does one with more memory: large products reach the profile's rates
  double least_s = 1;                       // least time of all rounds: more rounds average out disturbances
  double total_s = 3;                       // most time for all; every action runs at least twice
};

// Sets the cost of every action of `program` in `costs`. `input` contains the tokens that layers read.
void measure_costs(walk::ProfileCosts& costs, const StepMap& map, const Program& program, Device& device,
                   const Optimizer& optimizer, const StepInput& input, const MeasureLimits& limits = {});

}  // namespace terrace::running
