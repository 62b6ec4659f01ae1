// How the state of a model is spread over the ranks that train on different micro-batches.
//
// A layer's chunks form groups of one chunk for each rank; if a kind of state is sharded, rank r holds the r-th chunk of each
// group. One collective gathers or reduces one group.
//
//   ZeRO stage     0            1                       2                        3
//   sharded        nothing      master, moments         + gradients              + weights
//   gradients      all-reduced  reduce-scattered        the same, as soon as each is computed
//   weights        –            gathered after updates  gathered after updates   gathered before every use
//
// Hybrid sharding: `shard_group` neighbouring ranks share one replica of the state, and there are several replicas. Gradients
// are reduced within a shard group as they are computed, and the shards of the sum are all-reduced between the replicas once a
// step.
//
// Micro-batch i of rank r is the global micro-batch i · ranks + turn(r). Canonical reduction folds the gradients of
// micro-batches one by one in that order, so that the sums have the same bits as on one rank that computes them all. With
// several replicas, each replica folds its part of every shard, over all ranks, and the replicas exchange the parts once a
// step. turn() counts by the place in a shard group first, so that the parts lie in order.
//
// Local SGD: every rank updates a separate copy of the weights with its own gradients, and the copies are averaged every few
// steps (Engine::average()). Nothing is sharded, and nothing is reduced within a step.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include <terrace/memory/chunk.h>
#include <terrace/parallel/comm/fold.h>

namespace terrace {

// The wire dtype of numbers sent between ranks: unchanged, rounded to bf16 (core/narrow.h) or blocks of 8-bit codes
// (core/block8.h).
enum class Travel : std::uint8_t { whole, bf16, int8 };

struct DataParallel {
  std::uint32_t ranks = 1, rank = 0;
  std::uint32_t zero = 0;  // 0 to 3
  bool canonical = false;
  SumOrder sums = SumOrder::machines;  // of gradients and averages across machines
  Travel gradients = Travel::whole;    // bf16 and int8: only for fp32 gradients that are folded after each micro-batch
  Travel weights = Travel::whole;      // int8: only for weights gathered before each use; bf16: never
  std::uint32_t shard_group = 0;       // ranks that share one replica; it divides `ranks`; 0: all of them
  bool local = false;                  // local SGD
  // For orders in two directions: a stage's gradient is summed over all ranks of both, and each of them holds the whole sum.
  bool whole_gradients = false;

  // A rank that shares with no other rank has stage 0.
  [[nodiscard]] std::uint32_t stage() const { return ranks > 1 && shard_group != 1 ? zero : 0; }
  [[nodiscard]] std::uint32_t sharers() const { return stage() >= 1 && shard_group != 0 ? shard_group : ranks; }
  [[nodiscard]] std::uint32_t copies() const { return ranks / sharers(); }
  [[nodiscard]] std::uint32_t turn() const { return rank % sharers() * copies() + rank / sharers(); }
  [[nodiscard]] SumOrder sum_order() const { return canonical ? SumOrder::ranks : sums; }
  // Gradients are computed into a separate buffer and folded after every micro-batch.
  [[nodiscard]] bool folds_each() const { return canonical || stage() >= 2; }
  [[nodiscard]] bool reduces() const { return canonical || (ranks > 1 && !local); }
  [[nodiscard]] bool gathers_updates() const { return stage() == 1 || stage() == 2; }
  [[nodiscard]] bool gathers_before_use() const { return stage() == 3; }
  // Chunks in a group, and this rank's place among them.
  [[nodiscard]] std::uint32_t group() const { return stage() >= 1 || canonical ? sharers() : 1; }
  [[nodiscard]] std::uint32_t place() const { return rank % group(); }
  // Of a group, by their positions within the layer: this rank's chunk, all chunks, and those that this rank updates.
  [[nodiscard]] std::uint32_t own(std::uint32_t of_group) const { return of_group * group() + place(); }
  [[nodiscard]] std::vector<std::uint32_t> chunks_of(std::uint32_t of_group) const;
  [[nodiscard]] std::vector<std::uint32_t> updated_in(std::uint32_t of_group) const;
  [[nodiscard]] bool shards(Kind kind) const {
    switch (kind) {
      case Kind::parameter: return stage() >= 3;
      case Kind::gradient: return stage() >= 1 && folds_each() && !whole_gradients;
      case Kind::activation: return false;
      default: return stage() >= 1;
    }
  }
};

inline std::vector<std::uint32_t> DataParallel::chunks_of(std::uint32_t of_group) const {
  std::vector<std::uint32_t> all(group());
  std::iota(all.begin(), all.end(), of_group * group());
  return all;
}
inline std::vector<std::uint32_t> DataParallel::updated_in(std::uint32_t of_group) const {
  return stage() >= 1 ? std::vector{own(of_group)} : chunks_of(of_group);
}

}  // namespace terrace
