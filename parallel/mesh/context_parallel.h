// How the positions of a sequence are split over ranks: context parallelism. Every rank has a slice of equal length of all
// sequences of its data rank, and computes it with all weights; only attention needs the other ranks' positions.
//
// In a ring of n places, keys and values go round. Each place has one run of adjacent positions; in a zigzag it has two, chunks
// r and 2n − 1 − r of 2n, so that causal attention costs the same at every place.
//
// The ranks of a group are neighbours on the mesh's axis `context` (mesh.h). Their gradients are summed like those of data
// ranks, and they share the state as data ranks do.
//
// Threads: values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <terrace/parallel/comm/call.h>

namespace terrace {

struct ContextParallel {
  std::uint32_t ranks = 1, rank = 0;
  // The number of places in a ring round which keys and values go. Each place has ranks / ring neighbouring ranks; they
  // exchange heads, so that each has all positions of the place for some heads.
  std::uint32_t ring = 1;
  bool zigzag = false;     // each place in the ring has two runs; its number of positions is even
  bool two_rings = false;  // one ring of all ranks for keys, then one for values (parallel/layers/attention/two_rings.h)

  [[nodiscard]] std::uint32_t head_ranks() const { return ranks / ring; }
  [[nodiscard]] std::uint32_t ring_rank() const { return rank / head_ranks(); }
  [[nodiscard]] std::uint32_t head_rank() const { return rank % head_ranks(); }

  // The positions of a place in the ring, `count` of them, in the order in which they are stored.
  [[nodiscard]] std::vector<comm::Block> ring_runs(std::uint32_t place, std::int64_t count) const {
    if (!zigzag) return {{place * count, count}};
    const auto chunk = count / 2;
    return {{place * chunk, chunk}, {(2 * std::int64_t{ring} - 1 - place) * chunk, chunk}};
  }
  // The positions of this rank's slice, `slice` of them.
  [[nodiscard]] std::vector<comm::Block> runs(std::int64_t slice) const {
    std::vector<comm::Block> all;
    const std::int64_t first = head_rank() * slice, end = first + slice;
    std::int64_t at = 0;
    for (const auto& [begin, count] : ring_runs(ring_rank(), slice * head_ranks())) {
      const auto from = std::max(first, at), to = std::min(end, at + count);
      if (from < to) all.push_back({begin + from - at, to - from});
      at += count;
    }
    return all;
  }
};

}  // namespace terrace
