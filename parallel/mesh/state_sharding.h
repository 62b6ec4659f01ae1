// The part of a model's state that one rank holds, and the ranks with which it exchanges the rest.
//
// A layer's chunks form groups of one chunk for each rank that shares a replica. If a kind of state is sharded, the r-th of
// these ranks holds the r-th chunk of each group. One collective gathers or reduces one group.
//
// Micro-batch i of a rank is the global micro-batch i · ranks + turn. Canonical reduction folds the gradients of micro-batches
// one by one in that order, so that the sums have the same bits as on one rank that computes them all. With several replicas,
// each folds its part of every shard over all ranks, and the replicas exchange the parts once a step. Turns count the shards
// first, so that the parts lie in order.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/parallel/mesh/data_parallel.h>
#include <terrace/parallel/mesh/mesh.h>

namespace terrace {

struct StateSharding : DataParallel {
  StateSharding() = default;
  // `both_directions`: the order has two directions; a stage's gradient is then summed over the ranks of both, and each of them
  // holds the whole sum.
  StateSharding(const DataParallel& settings, const Mesh& mesh, std::uint32_t rank, bool both_directions)
      : DataParallel(settings),
        copy(mesh.index(rank, copied_over)),
        shard(mesh.index(rank, shared_by)),
        turn(mesh.turn(rank)),
        whole_gradients(both_directions) {}

  AxisSet copied_over = Axis::copy;                 // ranks with the same shard of the other replicas
  AxisSet shared_by = Axis::shard | Axis::context;  // ranks that share a replica
  std::uint32_t copy = 0, shard = 0, turn = 0;
  bool whole_gradients = false;

  [[nodiscard]] AxisSet axes() const { return copied_over | shared_by; }
  [[nodiscard]] std::uint32_t rank() const { return copy * sharers() + shard; }
  [[nodiscard]] std::uint32_t place() const { return shard % group(); }  // among the chunks of a group
  // Positions within the layer of a group's chunks: this rank's own chunk, all chunks, and those that this rank updates.
  [[nodiscard]] std::uint32_t own(std::uint32_t of_group) const { return of_group * group() + place(); }
  [[nodiscard]] std::vector<std::uint32_t> chunks_of(std::uint32_t of_group) const {
    std::vector<std::uint32_t> all(group());
    std::iota(all.begin(), all.end(), of_group * group());
    return all;
  }
  [[nodiscard]] std::vector<std::uint32_t> updated_in(std::uint32_t of_group) const {
    return stage() >= 1 ? std::vector{own(of_group)} : chunks_of(of_group);
  }
  [[nodiscard]] bool shards(Kind kind) const {
    switch (kind) {
      case Kind::parameter: return stage() >= 3;
      case Kind::gradient: return stage() >= 1 && folds_each() && !whole_gradients;
      case Kind::activation: return false;
      default: return stage() >= 1;
    }
  }
};

}  // namespace terrace
