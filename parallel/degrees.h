// Checks the degrees of parallelism for a model and a number of ranks. Finds all problems at once, each with the nearest legal
// degrees.
//
// Owner:   values.
// Threads: any; pure.
// Errors:  problems() returns the problems; check() throws them as one Error(Exit::usage).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/core/refused_setting.h>

namespace terrace {

struct Degrees {
  int dp = 1, pp = 1, tp = 1, cp = 1, ep = 1;
  int shard_group = 0;  // data ranks that share one replica of the state; 0: all of them
  int micro_batches = 1;
  bool canonical_reduction = false;
  bool sequence_parallel = false;  // with tp
};

struct ModelShape {
  std::int64_t layers = 1, heads = 1, ffn = 1, seq_len = 1;
  std::int64_t experts = 0;  // 0: none
};

std::vector<SettingRefusal> problems(const Degrees& degrees, const ModelShape& model, int ranks);
void check(const Degrees& degrees, const ModelShape& model, int ranks);

}  // namespace terrace
