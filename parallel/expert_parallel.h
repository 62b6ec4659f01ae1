// How the experts of a mixture are dealt out to ranks: expert parallelism (Lepikhin et al. 2021, GShard).
//
// Expert ranks train on different sequences, as data ranks do, and each has a run of the experts of every mixture. Rows go to
// the ranks with their experts and come back within a layer's call. All other parameters are the same on every expert rank,
// and so are the sums of their gradients, which the engine makes once a step.
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
