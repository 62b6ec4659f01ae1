// The mesh of a run, from its settings: the stages of its pipeline, its data, expert and context ranks, and the parts of its
// layers.
//
// Pure.
#pragma once

#include <cstdint>

#include <terrace/parallel/mesh/data_parallel.h>
#include <terrace/parallel/mesh/mesh.h>
#include <terrace/parallel/mesh/tensor_parallel.h>

namespace terrace {

inline Mesh mesh_of(const DataParallel& data, std::uint32_t stages, const TensorParallel& tensor) {
  return {.pp = stages,
          .copy = data.copies(),
          .shard = data.sharers() / data.context,
          .expert = data.experts,
          .context = data.context,
          .depth = tensor.is_grid() ? tensor.grid.depth : 1,
          .row = tensor.grid.side,
          .col = tensor.grid.side,
          .part = tensor.is_grid() ? 1 : tensor.ranks / tensor.twins,
          .twin = tensor.twins};
}

}  // namespace terrace
