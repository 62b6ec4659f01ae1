// What crosses between ranks: for each stage and each other rank that reads its result an edge, over which the result goes
// there once for a micro-batch, however many stages of that rank read it, and once its gradient comes back, summed over them.
//
// Owner:   whoever walks a schedule. Threads: const after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

struct CutEdge {
  std::uint32_t stage = 0;         // whose result it is
  std::uint32_t from = 0, to = 0;  // ranks
  std::uint32_t readers = 0;       // stages on rank `to`
};

class CutEdges {
 public:
  explicit CutEdges(const Placement& placement);
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(edges_.size()); }
  [[nodiscard]] const CutEdge& operator[](std::uint32_t edge) const { return edges_[edge]; }
  // Those that a stage's result leaves on, and those that what it reads comes on.
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
