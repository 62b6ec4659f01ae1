// The data ranks of a run in tests: the data axes of a mesh, and the settings with which the ranks share the state.
#pragma once

#include <cstdint>

#include <terrace/parallel/mesh/data_parallel.h>
#include <terrace/parallel/mesh/degrees.h>

namespace terrace::test {

struct DataRanks {
  std::uint32_t ranks = 1;
  std::uint32_t zero = 0;
  bool canonical = false;
  comm::SumOrder sums = comm::SumOrder::machines;
  Travel gradients = Travel::whole, weights = Travel::whole;
  std::uint32_t shard_group = 0;  // ranks that share one replica of the state; 0: all
  bool local = false;

  [[nodiscard]] DataParallel settings() const { return {zero, canonical, sums, gradients, weights, local}; }
  [[nodiscard]] Mesh mesh(std::uint32_t stages = 1) const {
    return mesh_of(
        {.dp = static_cast<int>(ranks), .pp = static_cast<int>(stages), .shard_group = static_cast<int>(shard_group)});
  }
};

}  // namespace terrace::test
