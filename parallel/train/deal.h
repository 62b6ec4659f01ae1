// Deals the sequences of a run out to its ranks. Sequences are numbered over all steps, and a step trains on the same numbers
// however many ranks and micro-batches share it. So runs on 1 and on 8 ranks see the same data.
//
// Micro-batch i of a rank is the global micro-batch i · ranks + turn of its step, and micro-batch g has the sequences from
// g · rows on. (state_sharding.h explains turns: canonical sums fold micro-batches in that order.)
//
// Pure. Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/step_map.h>

namespace terrace {

struct Deal {
  std::uint64_t rows = 1;                       // sequences of a micro-batch
  std::uint64_t micro_batches = 1;              // of a rank, in one step
  std::uint64_t together = 1;                   // steps that a program computes (asynchronous pipelines)
  std::uint64_t ranks = 1, rank = 0, turn = 0;  // those with different sequences
  std::uint64_t context = 1, slice = 0;         // ranks that share the positions of a sequence, and this one's slice

  static Deal of(const StepMap& map);
  // The sequences of this rank in the steps that a program computes, of which `step` is the first (counts from 1).
  [[nodiscard]] std::vector<std::uint64_t> of_steps(std::uint64_t step) const;
  // Of `count` micro-batches on each rank, in an evaluation that has come to global micro-batch `first`.
  [[nodiscard]] std::vector<std::uint64_t> of_evaluation(std::uint64_t first, std::uint64_t count) const;
};

}  // namespace terrace
