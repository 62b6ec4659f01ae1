// Which layers of a model each rank of a pipeline holds. Layers keep the model's numbers on every rank; a rank's programs speak
// only of those that it holds, and of the messages where a layer's input or its gradient crosses between ranks.
//
// Where an order runs in two directions a layer is on two ranks, its replicas: each computes every other micro-batch with
// weights of its own, their gradients are added up, and both make the same update. The first replica's rank speaks for the
// layer where one has to: in evaluations, in the gradient's norm, in what is exported.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace {

struct PipelineParallel {
  std::uint32_t ranks = 1, rank = 0;
  std::vector<std::vector<std::uint32_t>> rank_of = {};  // [replica][layer]; empty: one rank holds all
  std::vector<std::uint32_t> stage_of = {};              // [layer]; likewise
  bool halves = false;                                   // backwards come in halves, with other work between them
  // Of asynchronous orders: micro-batches behind each of the program's updates (0: it has one, of all of them); which version
  // of a stage's weights a micro-batch reads (pipeline/schedule.h); how many old ones are kept at once.
  std::uint32_t update_every = 0;
  std::vector<std::vector<std::uint32_t>> reads = {};  // [stage][micro-batch]
  std::vector<std::uint32_t> kept = {};                // [stage]

  [[nodiscard]] std::uint32_t replicas() const { return rank_of.empty() ? 1 : static_cast<std::uint32_t>(rank_of.size()); }
  [[nodiscard]] std::uint32_t replica_of(std::uint32_t micro_batch) const { return micro_batch % replicas(); }
  [[nodiscard]] std::uint32_t holder(std::uint32_t layer, std::uint32_t micro_batch) const {
    return rank_of.empty() ? 0 : rank_of[replica_of(micro_batch)][layer];
  }
  // Who speaks for the layer.
  [[nodiscard]] std::uint32_t holder(std::uint32_t layer) const { return holder(layer, 0); }
  // Which of a layer's replicas this rank has; replicas(): none.
  [[nodiscard]] std::uint32_t replica(std::uint32_t layer) const {
    std::uint32_t mine = 0;
    while (mine < rank_of.size() && rank_of[mine][layer] != rank) ++mine;
    return mine;
  }
  [[nodiscard]] std::uint32_t stage(std::uint32_t layer) const { return stage_of.empty() ? 0 : stage_of[layer]; }
  [[nodiscard]] bool asynchronous() const { return update_every != 0; }
  [[nodiscard]] std::uint32_t reads_version(std::uint32_t layer, std::uint32_t micro_batch) const {
    return asynchronous() ? reads[stage(layer)][micro_batch] : 0;
  }
  [[nodiscard]] std::uint32_t kept_copies(std::uint32_t layer) const { return asynchronous() ? kept[stage(layer)] : 0; }
  [[nodiscard]] bool holds(std::uint32_t layer) const { return rank_of.empty() || replica(layer) < replicas(); }
  [[nodiscard]] bool computes(std::uint32_t layer, std::uint32_t micro_batch) const {
    return rank_of.empty() || holder(layer, micro_batch) == rank;
  }
};

}  // namespace terrace
