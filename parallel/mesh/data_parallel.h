// Settings for spreading the model's state over the ranks that train on different tokens. state_sharding.h says what one rank
// then holds.
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
// Local SGD: every rank updates a separate copy of the weights with its own gradients, and the copies are averaged every few
// steps (Engine::average()). Nothing is sharded, and nothing is reduced within a step.
//
// Threads: values.
#pragma once

#include <cstdint>

#include <terrace/parallel/comm/fold.h>

namespace terrace {

// The wire dtype of numbers sent between ranks: unchanged, rounded to bf16 (core/math/narrow.h) or blocks of 8-bit codes
// (core/math/block8.h).
enum class Travel : std::uint8_t { whole, bf16, int8 };

struct DataParallel {
  std::uint32_t ranks = 1;    // with different sequences and the same parameters
  std::uint32_t context = 1;  // ranks that share the positions of a sequence: context parallelism
  std::uint32_t experts = 1;  // expert ranks in each of `ranks`, with different sequences and experts
  std::uint32_t zero = 0;     // 0 to 3
  bool canonical = false;
  SumOrder sums = SumOrder::machines;  // of gradients and averages across machines
  Travel gradients = Travel::whole;    // bf16 and int8: only for fp32 gradients that are folded after each micro-batch
  Travel weights = Travel::whole;      // int8: only for weights gathered before each use; bf16: never
  std::uint32_t shard_group = 0;       // data ranks that share one replica; divides `ranks`; 0: all of them
  bool local = false;                  // local SGD

  [[nodiscard]] std::uint32_t with_sequences() const { return ranks * experts; }  // ranks with different sequences
  // Ranks with different tokens and the same parameters, whose gradients are summed.
  [[nodiscard]] std::uint32_t all() const { return ranks * context; }
  // A rank that shares with no other rank has stage 0.
  [[nodiscard]] std::uint32_t stage() const { return all() > 1 && shard_group * context != 1 ? zero : 0; }
  [[nodiscard]] std::uint32_t sharers() const { return stage() >= 1 && shard_group != 0 ? shard_group * context : all(); }
  [[nodiscard]] std::uint32_t copies() const { return all() / sharers(); }
  [[nodiscard]] SumOrder sum_order() const { return canonical ? SumOrder::ranks : sums; }
  // Gradients are computed into a separate buffer and folded after every micro-batch.
  [[nodiscard]] bool folds_each() const { return canonical || stage() >= 2; }
  [[nodiscard]] bool reduces() const { return canonical || (all() > 1 && !local); }
  [[nodiscard]] bool gathers_updates() const { return stage() == 1 || stage() == 2; }
  [[nodiscard]] bool gathers_before_use() const { return stage() == 3; }
  [[nodiscard]] std::uint32_t group() const { return stage() >= 1 || canonical ? sharers() : 1; }  // chunks in a group
};

}  // namespace terrace
