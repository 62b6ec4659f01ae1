// Checks the degrees of parallelism against the model, the number of ranks and the run's other settings. Finds all problems at
// once, each with the nearest legal degree.
//
// Owner:   values.
// Threads: any; pure.
// Errors:  problems() returns the problems; demand_degrees() throws them as UsageErrors does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/parallel/mesh/features.h>
#include <terrace/parallel/mesh/mesh.h>
#include <terrace/parallel/mesh/tensor_parallel.h>

namespace terrace {

struct Degrees {
  int dp = 1, pp = 1, tp = 1, cp = 1, ep = 1;
  TensorMode tensor_mode = TensorMode::line;
  int tensor_depth = 1;  // number of grids in 2.5D
  int shard_group = 0;   // data ranks that share one replica of the state; 0: all of them
  int micro_batches = 1;
  bool canonical_reduction = false;
  bool sequence_parallel = false;  // with tp
  int ring = 0;                    // with cp: ranks of a ring (context_parallel.h); 0: all
  bool zigzag = false;             // with cp: each place in a ring has two parts of a sequence
  Features with = {};              // the run's other features
};

struct ModelShape {
  std::int64_t layers = 1, heads = 1, ffn = 1;
  std::int64_t seq_len = 1;   // 0: any length
  std::int64_t experts = 0;   // 0: none
  std::int64_t kv_heads = 0;  // 0: as many as heads
  // Used with tensor ranks in a grid. attended: columns of the attention's result; 0: as many as hidden.
  std::int64_t hidden = 1, attended = 0;
};

// The mesh of these degrees. `kv_heads`: tensor ranks in a line that are a multiple of these share heads, as twins; 0: they do
// not. Throws RefusedSetting if the degrees form no mesh.
Mesh mesh_of(const Degrees& degrees, std::int64_t kv_heads = 0);

// The grid of `ranks` tensor ranks, for any model; throws as demand_degrees() does if they form none.
TensorGrid demand_grid(TensorMode mode, int ranks, int depth);

// The features of the degrees, and `with`.
Features features_of(const Degrees& degrees);
// Features that exclude each other, and degrees that do not divide what they split or whose product is not the number of ranks.
std::vector<SettingRefusal> problems(const Degrees& degrees, const ModelShape& model, int ranks);
void demand_degrees(const Degrees& degrees, const ModelShape& model, int ranks);
// The same for the ranks among which a model is split, and that they are arranged as ModelRank says. Its sequences may have any
// length. `with`: the other features.
void demand_place(const ModelRank& place, ModelShape model, const Features& with);

}  // namespace terrace
