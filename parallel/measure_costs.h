// How long a model's actions take on this machine: each distinct one is run on scratch memory, with nothing else running.
//
// The simulator then times programs with these instead of FLOPs ÷ rate. Decisions of a plan never rest on them: the same
// request and profile give the same moves every time.
//
// Owner:   none; the scratch memory is as large as the largest single action and is given back.
// Threads: the caller's, and the device's own. Errors: of the layers and of allocation.
#pragma once

#include <terrace/core/device.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/compute.h>
#include <terrace/parallel/simulator.h>

namespace terrace {

struct MeasureLimits {
  std::uint64_t memory_bytes =
      64 * kMiB;  // to spread the actions over, as the device's budget does: so that caches hold no more than in a step
  std::uint64_t upload_bytes = 0;  // that a step uploads: as large a share of what an action reads is uploaded just before it
  double action_s = 2;             // an action that the estimate holds for longer keeps its estimate
  double least_s = 1;              // of repeating: small models take many rounds, so that a moment's noise does not tell
  double total_s = 3;              // the most; every action is run at least twice
};

// Sets the cost of every action of `program` in `costs`. `input` gives the tokens that layers read.
void measure_costs(ProfileCosts& costs, const StepMap& map, const Program& program, Device& device, const Optimizer& optimizer,
                   const StepInput& input, const MeasureLimits& limits = {});

}  // namespace terrace
