// Which part of a model a rank has: its place in the mesh, and how the ranks on each axis divide what they compute together.
//
// Only the axes of tensor, context and expert ranks matter here: ranks that differ on the others have the same part.
//
// Threads: values.
#pragma once

#include <cstdint>

#include <terrace/parallel/mesh/context_parallel.h>
#include <terrace/parallel/mesh/expert_parallel.h>
#include <terrace/parallel/mesh/mesh.h>
#include <terrace/parallel/mesh/tensor_parallel.h>

namespace terrace {

struct ModelRank {
  Mesh mesh = {};
  std::uint32_t rank = 0;    // of the mesh
  bool sequence = false;     // tensor ranks share the rows of activations between layers (tensor_parallel.h)
  std::uint32_t pieces = 1;  // in which they exchange rows
  bool cube = false;         // ranks in a grid divide each block once more (3D)
  std::uint32_t ring = 1;    // context ranks in a ring (context_parallel.h)
  bool zigzag = false, two_rings = false;

  [[nodiscard]] TensorParallel tensor() const {
    return {.ranks = mesh.size(kTensorAxes),
            .rank = mesh.index(rank, kTensorAxes),
            .sequence = sequence,
            .grid = {.depth = mesh.depth, .side = mesh.row, .cube = cube},
            .twins = mesh.twin,
            .pieces = pieces};
  }
  [[nodiscard]] ContextParallel context() const {
    return {.ranks = mesh.context,
            .rank = mesh.coordinate(rank, Axis::context),
            .ring = ring,
            .zigzag = zigzag,
            .two_rings = two_rings};
  }
  [[nodiscard]] ExpertParallel expert() const { return {mesh.expert, mesh.coordinate(rank, Axis::expert)}; }
};

}  // namespace terrace
