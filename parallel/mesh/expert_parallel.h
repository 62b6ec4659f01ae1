// How the experts of a mixture are divided among ranks: expert parallelism (Lepikhin et al. 2021, GShard).
//
// Expert ranks train on different sequences, as data ranks do, and each holds a run of consecutive experts of every mixture.
// Within a layer's call, rows are sent to the ranks that hold their experts, and the results are sent back. All other
// parameters are the same on every expert rank; once a step the engine sums their gradients over the expert ranks.
//
// The ranks of a group are neighbours on the mesh's axis `expert` (mesh.h).
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace {

struct ExpertParallel {
  std::uint32_t ranks = 1, rank = 0;
};

}  // namespace terrace
