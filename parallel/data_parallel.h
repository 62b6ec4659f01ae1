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
// Micro-batch i of rank r is the global micro-batch i · ranks + r. Canonical reduction folds the gradients of micro-batches one
// by one in that order, so that the sums are the bits of one rank that computes them all.
//
// Threads: values.
#pragma once

#include <cstdint>

#include <terrace/memory/chunk.h>

namespace terrace {

struct DataParallel {
  std::uint32_t ranks = 1, rank = 0;
  std::uint32_t zero = 0;  // 0 to 3
  bool canonical = false;

  [[nodiscard]] std::uint32_t stage() const { return ranks > 1 ? zero : 0; }  // one rank has nobody to share with
  // Gradients are computed into a buffer of their own and folded after every micro-batch.
  [[nodiscard]] bool folds_each() const { return canonical || stage() >= 2; }
  [[nodiscard]] bool reduces() const { return canonical || ranks > 1; }
  [[nodiscard]] bool gathers_updates() const { return stage() == 1 || stage() == 2; }
  [[nodiscard]] bool gathers_before_use() const { return stage() == 3; }
  // Chunks a group.
  [[nodiscard]] std::uint32_t group() const { return stage() >= 1 || canonical ? ranks : 1; }
  [[nodiscard]] bool shards(Kind kind) const {
    switch (kind) {
      case Kind::parameter: return stage() >= 3;
      case Kind::gradient: return stage() >= 1 && folds_each();
      case Kind::activation: return false;
      default: return stage() >= 1;
    }
  }
};

}  // namespace terrace
