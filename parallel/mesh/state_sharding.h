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
        ranks(mesh.size(Axis::copy | Axis::shard)),
        context(mesh.context),
        experts(mesh.expert),
        shares_with(mesh.shard * mesh.context),
        copied_over(stage() >= 1 ? AxisSet(Axis::copy) : AxisSet()),
        shared_by(kDataAxes - copied_over),
        copy(mesh.index(rank, copied_over)),
        shard(mesh.index(rank, shared_by)),
        turn(mesh.turn(rank)),
        whole_gradients(both_directions) {}

  std::uint32_t ranks = 1;        // with different sequences and the same parameters
  std::uint32_t context = 1;      // ranks that share the positions of a sequence
  std::uint32_t experts = 1;      // expert ranks in each of `ranks`, with different sequences and experts
  std::uint32_t shares_with = 1;  // ranks on the mesh's axes shard and context
  AxisSet copied_over = {};       // ranks with the same shard of the other replicas
  AxisSet shared_by = kDataAxes;  // ranks that share a replica
  std::uint32_t copy = 0, shard = 0, turn = 0;
  bool whole_gradients = false;

  [[nodiscard]] std::uint32_t with_sequences() const { return ranks * experts; }  // ranks with different sequences
  // Ranks with different tokens and the same parameters, whose gradients are summed.
  [[nodiscard]] std::uint32_t all() const { return ranks * context; }
  // A rank that shares with no other rank has stage 0.
  [[nodiscard]] std::uint32_t stage() const { return shares_with > 1 ? zero : 0; }
  [[nodiscard]] std::uint32_t sharers() const { return stage() >= 1 ? shares_with : all(); }
  [[nodiscard]] std::uint32_t copies() const { return all() / sharers(); }
  // Gradients are computed into a separate buffer and folded after every micro-batch.
  [[nodiscard]] bool folds_each() const { return canonical || stage() >= 2; }
  [[nodiscard]] bool reduces() const { return canonical || (all() > 1 && !local); }
  [[nodiscard]] bool gathers_updates() const { return stage() == 1 || stage() == 2; }
  [[nodiscard]] bool gathers_before_use() const { return stage() == 3; }
  [[nodiscard]] std::uint32_t group() const { return stage() >= 1 || canonical ? sharers() : 1; }  // chunks in a group
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
  [[nodiscard]] bool shards(ChunkKind kind) const {
    switch (kind) {
      case ChunkKind::parameter: return stage() >= 3;
      case ChunkKind::gradient: return stage() >= 1 && folds_each() && !whole_gradients;
      case ChunkKind::activation: return false;
      default: return stage() >= 1;
    }
  }
};

}  // namespace terrace
