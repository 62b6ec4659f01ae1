// How the positions of a sequence are split over ranks: context parallelism. Every rank has a slice of equal length of all
// sequences of its data rank, and computes it with all weights; only attention needs the other ranks' positions.
//
// The ranks of a group are neighbours of the mesh's axis `context` (mesh.h). Their gradients are summed like those of data
// ranks, and they share the state as data ranks do.
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace {

struct ContextParallel {
  std::uint32_t ranks = 1, rank = 0;
};

}  // namespace terrace
