// The stages whose results each stage reads: a chain unless the placement says otherwise.
//
// Owner:   the code that walks a schedule. Threads: const after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

class StageGraph {
 public:
  explicit StageGraph(const Placement& placement)
      : inputs_(placement.inputs.empty() ? chain(placement.stages) : placement.inputs), readers_(placement.stages) {
    for (std::uint32_t stage = 0; stage < placement.stages; ++stage)
      for (const auto input : inputs_[stage]) readers_[input].push_back(stage);
  }
  [[nodiscard]] std::span<const std::uint32_t> inputs(std::uint32_t stage) const { return inputs_[stage]; }
  [[nodiscard]] std::span<const std::uint32_t> readers(std::uint32_t stage) const { return readers_[stage]; }

 private:
  std::vector<std::vector<std::uint32_t>> inputs_, readers_;  // [stage]
};

}  // namespace terrace::pipeline
