// The ways to divide a run over its ranks that a search compares: every legal product of degrees of parallelism.
//
// Legal is what degrees.h and features.h accept. The micro-batch stays, so data and expert ranks divide the sequences of a
// step. Tensor and context groups stay on one node.
//
// Owner: values. Threads: any; pure. Errors: none; what a run would refuse is left out.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/mesh/degrees.h>
#include <terrace/parallel/mesh/model_rank.h>
#include <terrace/parallel/model/layer.h>

namespace terrace {

struct Candidate {
  Degrees degrees = {};
  ModelRank place = {};             // of the first rank, for the model and its mesh
  std::uint32_t zero = 0;           // the ZeRO stage
  std::uint32_t micro_batches = 1;  // of each rank, in a step
};

struct SearchSpace {
  std::uint32_t ranks = 1, ranks_per_node = 1;
  std::int64_t sequences = 1;   // of a step, on all ranks
  BatchShape micro_batch = {};  // with all positions of its sequences
  ModelShape model = {};        // what the degrees must divide
  // What the candidates have in common: the run's features, the sums of gradients, zigzag rings, and the pieces in which tensor
  // ranks exchange rows. If it has several context or expert ranks, their number stays, too, and the rings of context ranks.
  Candidate given = {};
};

// The candidates: data, pipeline, tensor, context and expert ranks in every number, tensor and context ranks in every
// arrangement, with every ZeRO stage.
std::vector<Candidate> candidates(const SearchSpace& space);

}  // namespace terrace
