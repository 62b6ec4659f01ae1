// How a model is split over ranks that compute the same micro-batches together: tensor parallelism (Shoeybi et al. 2019), and
// with `sequence` the sequence parallelism of Korthikanti et al. 2022.
//
// Each of the ranks has a part of every large matrix. What a layer of such a model computes, its result and the gradient of its
// input, is this rank's part of a sum over the ranks; what it reads, its input and the gradient of its result, is whole. The
// engine sums between layers. With `sequence` a rank keeps only its share of the rows of an activation between layers: the sum
// is a reduce-scatter, and an all-gather makes the input whole again just before a layer reads it.
//
// The ranks of a group are neighbours, the innermost axes of the mesh (mesh.h).
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace {

struct TensorParallel {
  std::uint32_t ranks = 1, rank = 0;
  bool sequence = false;
  // Neighbouring ranks that hold the same part of some parameters: key-value heads, if there are fewer of them than ranks.
  std::uint32_t twins = 1;

  // The rank that adds what must be added once: a residual, the bias of a sum.
  [[nodiscard]] bool leads() const { return rank == 0; }
};

}  // namespace terrace
