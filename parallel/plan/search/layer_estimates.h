// The seconds and bytes of each layer on one rank, from the planner's programs for the layers that repeat.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) as SearchedRun::model and write_programs().
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/machine/machine.h>
#include <terrace/parallel/plan/search/searched_run.h>

namespace terrace::planning {

struct LayerEstimate {
  // Seconds of a micro-batch: computing, and the exchanges of tensor and context ranks, each alone on its lane.
  double forward = 0, backward = 0, forward_exchange = 0, backward_exchange = 0;
  // Seconds of a micro-batch for exchanges between data ranks: gathers of sharded weights, reductions.
  double gather = 0, reduction = 0;
  // Seconds of a step: the last micro-batch's reduction, gathers of updated weights, norms and the like, updates on the device.
  double last_reduction = 0, updated_gather = 0, norm = 0, update = 0;
  // Bytes that this rank holds, and bytes (input, saved) that it keeps of a micro-batch from the forward to the backward.
  double weights = 0, gradients = 0, states = 0, input = 0, saved = 0;
  double content = 0;  // bytes of weights or masters, and of moments, without padding: always held by some tier
  LayerEstimate& operator+=(const LayerEstimate& more);
};

struct LayerEstimates {
  std::vector<LayerEstimate> layers;  // of the whole model
  double largest_action = 0;          // bytes that one action uses on the device, without padding
  double window = 0;                  // bytes of the gathered weights and unreduced gradients of one layer
};

// Estimates as if one rank held all layers: pipeline ranks only affect the number of data ranks.
LayerEstimates estimate_layers(const SearchedRun& run, const Candidate& candidate, const MachineProfile& profile);

}  // namespace terrace::planning
