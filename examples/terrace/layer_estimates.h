// The seconds and bytes of each layer on one rank, from the planner's programs for a model of one block.
//
// Pure. Threads: any. Errors: Error(Exit::usage) as make_model() and write_programs().
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/machine.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

struct LayerEstimate {
  // Seconds of a micro-batch: computing, and exchanges of tensor and context ranks, alone on their lanes.
  double forward = 0, backward = 0, forward_exchange = 0, backward_exchange = 0;
  // Between data ranks, of a micro-batch: gathers of sharded weights, reductions.
  double gather = 0, reduction = 0;
  // Of a step: the last micro-batch's reduction, gathers of updated weights, norms and the like, updates on the device.
  double last_reduction = 0, updated_gather = 0, norm = 0, update = 0;
  // Bytes that this rank holds, and that it keeps of a micro-batch from the forward to the backward.
  double weights = 0, gradients = 0, states = 0, input = 0, saved = 0;
  double content = 0;  // of its weights or masters and its moments, without padding: some tier has them at any time
  LayerEstimate& operator+=(const LayerEstimate& more);
};

struct LayerEstimates {
  std::vector<LayerEstimate> layers;  // of the whole model
  double largest_action = 0;          // bytes that one action uses on the device, without padding
  double window = 0;                  // bytes of the gathered weights and unreduced gradients of one layer
};

// As if one rank held all layers. `config.pp` counts only in the number of data ranks.
LayerEstimates estimate_layers(const RunConfig& config, const MachineProfile& profile);

}  // namespace terrace::cli
