// Assigns the sequences of a run to its ranks. Sequences are numbered over all steps, and a step trains on the same numbers for
// any number of ranks and micro-batches. So runs on 1 and on 8 ranks see the same data.
//
// Micro-batch i of a rank is the global micro-batch i · ranks + turn of its step, and micro-batch g has the sequences from
// g · rows on. (state_sharding.h explains turns: canonical sums fold micro-batches in that order.)
//
// Pure. Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/map/step_map.h>

namespace terrace::training {

struct Deal {
  std::uint64_t rows = 1;                       // sequences of a micro-batch
  std::uint64_t micro_batches = 1;              // of a rank, in one step
  std::uint64_t together = 1;                   // steps that a program computes (asynchronous pipelines)
  std::uint64_t ranks = 1, rank = 0, turn = 0;  // ranks with different sequences, and this one among them
  std::uint64_t context = 1, slice = 0;         // ranks that share the positions of a sequence, and this one's slice

  static Deal of(const StepMap& map);
  // The sequences of this rank in the steps that one program computes; `step` is the first of them (counts from 1).
  [[nodiscard]] std::vector<std::uint64_t> of_steps(std::uint64_t step) const;
  // The sequences of this rank's next `count` micro-batches in an evaluation; `first` is the global number of the first
  // micro-batch.
  [[nodiscard]] std::vector<std::uint64_t> of_evaluation(std::uint64_t first, std::uint64_t count) const;
};

}  // namespace terrace::training
