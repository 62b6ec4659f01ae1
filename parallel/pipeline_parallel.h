// Which layers of a model each rank of a pipeline holds. Layers keep the model's numbers on every rank; a rank's programs speak
// only of those that it holds, and of the messages where a layer's input or its gradient crosses between ranks.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace {

struct PipelineParallel {
  std::uint32_t ranks = 1, rank = 0;
  std::vector<std::uint32_t> rank_of = {};   // a layer; empty: one rank holds all
  std::vector<std::uint32_t> stage_of = {};  // likewise
  bool halves = false;                       // backwards come in halves, with other work between them
  // Of asynchronous orders: micro-batches behind each of the program's updates (0: it has one, of all of them); which version
  // of a stage's weights a micro-batch reads (pipeline/schedule.h); how many old ones are kept at once.
  std::uint32_t update_every = 0;
  std::vector<std::vector<std::uint32_t>> reads = {};  // [stage][micro-batch]
  std::vector<std::uint32_t> kept = {};                // [stage]

  [[nodiscard]] std::uint32_t holder(std::uint32_t layer) const { return rank_of.empty() ? 0 : rank_of[layer]; }
  [[nodiscard]] std::uint32_t stage(std::uint32_t layer) const { return stage_of.empty() ? 0 : stage_of[layer]; }
  [[nodiscard]] bool asynchronous() const { return update_every != 0; }
  [[nodiscard]] std::uint32_t reads_version(std::uint32_t layer, std::uint32_t micro_batch) const {
    return asynchronous() ? reads[stage(layer)][micro_batch] : 0;
  }
  [[nodiscard]] std::uint32_t kept_copies(std::uint32_t layer) const { return asynchronous() ? kept[stage(layer)] : 0; }
  [[nodiscard]] bool holds(std::uint32_t layer) const { return rank_of.empty() || rank_of[layer] == rank; }
};

}  // namespace terrace
