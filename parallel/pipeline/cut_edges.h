// The edges between ranks: one for each stage and each other rank that reads its result. For each micro-batch, the result
// crosses the edge once, even if several stages of that rank read it, and its gradient comes back once, summed over those
// stages.
//
// Owner:   the code that walks a schedule. Threads: const after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

struct CutEdge {
  std::uint32_t stage = 0;         // the stage with the result
  std::uint32_t from = 0, to = 0;  // ranks
  std::uint32_t readers = 0;       // stages on rank `to`
};

class CutEdges {
 public:
  explicit CutEdges(const Placement& placement);
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(edges_.size()); }
  [[nodiscard]] const CutEdge& operator[](std::uint32_t edge) const { return edges_[edge]; }
  // The edges over which a stage's result leaves, and those over which its inputs arrive.
  [[nodiscard]] std::span<const std::uint32_t> out_of(std::uint32_t replica, std::uint32_t stage) const {
    return out_of_[replica * stages_ + stage];
  }
  [[nodiscard]] std::span<const std::uint32_t> into(std::uint32_t replica, std::uint32_t stage) const {
    return into_[replica * stages_ + stage];
  }

 private:
  std::uint32_t stages_;
  std::vector<CutEdge> edges_;
  std::vector<std::vector<std::uint32_t>> out_of_, into_;  // [replica · stages + stage]
};

}  // namespace terrace::pipeline
