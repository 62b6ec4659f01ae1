// Settings for spreading the model's state over the ranks that train on different tokens. The mesh says how many these are, and
// state_sharding.h what one rank then holds.
//
//   ZeRO stage     0            1                       2                        3
//   sharded        nothing      master, moments         + gradients              + weights
//   gradients      all-reduced  reduce-scattered        the same, as soon as each is computed
//   weights        –            gathered after updates  gathered after updates   gathered before every use
//
// Hybrid sharding: the ranks of the mesh's axis `shard` share one replica of the state, and the axis `copy` has several
// replicas. Gradients are reduced within a replica as they are computed, and the shards of the sum are all-reduced between the
// replicas once a step.
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
  std::uint32_t zero = 0;  // 0 to 3
  bool canonical = false;
  comm::SumOrder sums = comm::SumOrder::machines;  // of gradients and averages across machines
  Travel gradients = Travel::whole;  // bf16 and int8: only for fp32 gradients that are folded after each micro-batch
  Travel weights = Travel::whole;    // int8: only for weights gathered before each use; bf16: never
  bool local = false;                // local SGD

  [[nodiscard]] comm::SumOrder sum_order() const { return canonical ? comm::SumOrder::ranks : sums; }
};

}  // namespace terrace
