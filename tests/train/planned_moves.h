// A plan's moves by kind of chunk, so that a test can check that its setting offloads what it claims.
#pragma once

#include <array>

#include <terrace/memory/eviction.h>
#include <terrace/memory/residency.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/parallel/walk/walk.h>

namespace terrace::test {

// Moves of the fill and the first three steps.
class PlannedMoves : private walk::Sink {
 public:
  PlannedMoves(const Model& model, const Plan& plan) : map_(model, plan.map) {
    memory::Belady policy;
    memory::Residency residency(plan.capacity, policy, plan.generations);
    map_.chunks().add_to(residency);
    walk::Walk walk(map_, residency, policy);
    walk.run(plan.programs.fill, *this);
    walk.run(plan.programs.first, *this);
    for (int i = 0; i < 2; ++i) walk.run(plan.programs.steady, *this);
  }
  [[nodiscard]] std::uint64_t of(ChunkKind kind, Lane lane) const {
    return moves_[static_cast<std::size_t>(kind)][index(lane)];
  }

 private:
  void move(const Move& move) override {
    ++moves_[static_cast<std::size_t>(map_.chunks()[move.chunk].kind)][index(lane_of(move.from, move.to))];
  }
  void compute(const Action&, std::span<const Use>, const memory::Residency::Granted&, Lane, std::uint64_t) override {}

  StepMap map_;
  std::array<std::array<std::uint64_t, kLanes>, kChunkKinds> moves_{};
};

}  // namespace terrace::test
