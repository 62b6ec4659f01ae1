// The layers of a model that each rank of a pipeline holds. On every rank, layers have the model's numbers. A rank's program
// contains only the actions of its own layers, and the messages between ranks, which carry a layer's input or its gradient.
//
// In an order in two directions a layer is on two ranks. Each of these two replicas computes every other micro-batch with its
// own weights; their gradients are summed, and both make the same update. Work that only one of them may do (evaluations, the
// gradient's norm, exports) is done by the rank of the first replica.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace terrace::mesh {

struct PipelineParallel {
  std::uint32_t ranks = 1;
  std::vector<std::vector<std::uint32_t>> rank_of = {};  // [replica][layer]; empty: one rank holds all layers
  std::vector<std::uint32_t> stage_of = {};              // [layer]; empty: one rank holds all layers
  bool halves = false;                                   // backwards run in two halves, with other work between them
  // For asynchronous orders. update_every: micro-batches that each update of the program covers (0: one update covers all of
  // them). reads: the weight version of the stage that each micro-batch reads (pipeline/schedule.h). kept: the most old
  // versions that are kept at once.
  std::uint32_t update_every = 0;
  std::vector<std::vector<std::uint32_t>> reads = {};  // [stage][micro-batch]
  std::vector<std::uint32_t> kept = {};                // [stage]

  [[nodiscard]] std::uint32_t replicas() const { return rank_of.empty() ? 1 : static_cast<std::uint32_t>(rank_of.size()); }
  [[nodiscard]] std::uint32_t replica_of(std::uint32_t micro_batch) const { return micro_batch % replicas(); }
  [[nodiscard]] std::uint32_t holder(std::uint32_t layer, std::uint32_t micro_batch) const {
    return rank_of.empty() ? 0 : rank_of[replica_of(micro_batch)][layer];
  }
  // The rank of the first replica, which acts for the layer.
  [[nodiscard]] std::uint32_t holder(std::uint32_t layer) const { return holder(layer, 0); }
  [[nodiscard]] std::uint32_t stage(std::uint32_t layer) const { return stage_of.empty() ? 0 : stage_of[layer]; }
  [[nodiscard]] bool asynchronous() const { return update_every != 0; }
  [[nodiscard]] std::uint32_t reads_version(std::uint32_t layer, std::uint32_t micro_batch) const {
    return asynchronous() ? reads[stage(layer)][micro_batch] : 0;
  }
  [[nodiscard]] std::uint32_t kept_copies(std::uint32_t layer) const { return asynchronous() ? kept[stage(layer)] : 0; }
};

struct HeldLayers : PipelineParallel {
  HeldLayers() = default;
  HeldLayers(PipelineParallel pipeline, std::uint32_t of_rank) : PipelineParallel(std::move(pipeline)), rank(of_rank) {}

  std::uint32_t rank = 0;

  [[nodiscard]] bool speaks_for(std::uint32_t layer) const { return holder(layer) == rank; }
  // The number of the layer's replica that this rank holds; replicas() if it holds none.
  [[nodiscard]] std::uint32_t replica(std::uint32_t layer) const {
    std::uint32_t mine = 0;
    while (mine < rank_of.size() && rank_of[mine][layer] != rank) ++mine;
    return mine;
  }
  [[nodiscard]] bool holds(std::uint32_t layer) const { return rank_of.empty() || replica(layer) < replicas(); }
  [[nodiscard]] bool computes(std::uint32_t layer, std::uint32_t micro_batch) const {
    return rank_of.empty() || holder(layer, micro_batch) == rank;
  }
};

}  // namespace terrace::mesh
