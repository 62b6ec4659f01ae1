// How the state of a model is spread over the ranks that train on different micro-batches.
//
// A layer's chunks stand in groups of one for each rank; where a kind of state is sharded, rank r holds the r-th of each group.
// The group is what is gathered and reduced at once.
//
//   ZeRO stage     0            1                       2                        3
//   sharded        nothing      master, moments         + gradients              + weights
//   gradients      all-reduced  reduce-scattered        the same, as soon as each is computed
//   weights        –            gathered after updates  gathered after updates   gathered before every use
//
// Hybrid shards: `shard_group` neighbours share one copy of the state, and there are several copies. Gradients are reduced
// within a group as they come, and the shards of the sum are all-reduced between the copies once a step.
//
// Micro-batch i of rank r is the global micro-batch i · ranks + turn(r). Canonical reduction folds the gradients of
// micro-batches one by one in that order, so that the sums are the bits of one rank that computes them all. With copies, each
// of them folds its part of every shard, over all ranks, and they exchange the parts once a step; for the parts to lie in
// order, ranks take turns by their place in a group first.
//
// Local SGD: every rank updates a copy of its own by its own gradients, and the copies' weights are averaged every so many
// steps (Engine::average()). Nothing is sharded, and nothing is reduced in a step.
//
// Threads: values.
#pragma once

#include <cstdint>

#include <terrace/memory/chunk.h>

namespace terrace {

// How numbers travel between ranks: as they are, rounded to bf16 (core/narrow.h) or in blocks of 8-bit codes (core/block8.h).
enum class Travel : std::uint8_t { whole, bf16, int8 };

struct DataParallel {
  std::uint32_t ranks = 1, rank = 0;
  std::uint32_t zero = 0;  // 0 to 3
  bool canonical = false;
  Travel gradients = Travel::whole;  // fp32 ones, where each micro-batch's are folded
  Travel weights = Travel::whole;    // where they are gathered before use: whole or int8
  std::uint32_t shard_group = 0;     // ranks that share one copy of what is sharded; 0: all. It divides them
  bool local = false;                // copies that are averaged now and then
  // Where orders run in two directions: a stage's gradient is added up between all ranks of both, and ends whole on each.
  bool whole_gradients = false;

  // One rank has nobody to share with.
  [[nodiscard]] std::uint32_t stage() const { return ranks > 1 && shard_group != 1 ? zero : 0; }
  [[nodiscard]] std::uint32_t sharers() const { return stage() >= 1 && shard_group != 0 ? shard_group : ranks; }
  [[nodiscard]] std::uint32_t copies() const { return ranks / sharers(); }
  [[nodiscard]] std::uint32_t turn() const { return rank % sharers() * copies() + rank / sharers(); }
  // Gradients are computed into a buffer of their own and folded after every micro-batch.
  [[nodiscard]] bool folds_each() const { return canonical || stage() >= 2; }
  [[nodiscard]] bool reduces() const { return canonical || (ranks > 1 && !local); }
  [[nodiscard]] bool gathers_updates() const { return stage() == 1 || stage() == 2; }
  [[nodiscard]] bool gathers_before_use() const { return stage() == 3; }
  // Chunks a group, and which of them is this rank's.
  [[nodiscard]] std::uint32_t group() const { return stage() >= 1 || canonical ? sharers() : 1; }
  [[nodiscard]] std::uint32_t place() const { return rank % group(); }
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
