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

  [[nodiscard]] std::uint32_t holder(std::uint32_t layer) const { return rank_of.empty() ? 0 : rank_of[layer]; }
  [[nodiscard]] std::uint32_t stage(std::uint32_t layer) const { return stage_of.empty() ? 0 : stage_of[layer]; }
  [[nodiscard]] bool holds(std::uint32_t layer) const { return rank_of.empty() || rank_of[layer] == rank; }
};

}  // namespace terrace
