// How the positions of a sequence are split over ranks: context parallelism. Every rank has a slice of equal length of all
// sequences of its data rank, and computes it with all weights; only attention needs the other ranks' positions.
//
// A slice is a run of neighbours; in a zigzag it is two, chunks r and 2c - 1 - r of 2c, so that the causal attention of every
// rank costs the same.
//
// The ranks of a group are neighbours of the mesh's axis `context` (mesh.h). Their gradients are summed like those of data
// ranks, and they share the state as data ranks do.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/comm/call.h>

namespace terrace {

// What the ranks exchange for attention. ulysses: heads, so that each has all positions of some. ring: keys and values, which
// go from rank to rank.
enum class ContextMode : std::uint8_t { ulysses, ring };

struct ContextParallel {
  std::uint32_t ranks = 1, rank = 0;
  ContextMode mode = ContextMode::ulysses;
  bool zigzag = false;  // an even number of positions a slice

  // The positions of a rank's slice of so many, in the order in which they lie there.
  [[nodiscard]] std::vector<Block> runs(std::uint32_t of_rank, std::int64_t slice) const {
    if (!zigzag) return {{of_rank * slice, slice}};
    const auto chunk = slice / 2;
    return {{of_rank * chunk, chunk}, {(2 * std::int64_t{ranks} - 1 - of_rank) * chunk, chunk}};
  }
  [[nodiscard]] std::vector<Block> runs(std::int64_t slice) const { return runs(rank, slice); }
};

}  // namespace terrace
