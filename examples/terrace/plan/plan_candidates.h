// The configurations that terrace plan --search compares: every legal product of degrees of parallelism for a number of ranks.
//
// Owner: values. Threads: any. Errors: none; what a run would refuse is left out.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

struct SearchSpace {
  std::int64_t ranks = 1, ranks_per_node = 1;
  std::int64_t sequences = 1;  // of a step, on all ranks
  // Completes a candidate after its degrees and micro-batches are set, for example with the cluster's budgets.
  std::function<RunConfig(RunConfig)> complete = [](RunConfig c) { return c; };
};
// Returns the legal candidates: `given` with other numbers of data, pipeline, tensor, context and expert ranks, with tensor and
// context ranks in every mode, and with every ZeRO stage. The micro-batch stays. Tensor and context groups are on one node. If
// `given` has several context or expert ranks, their number and mode stay, too.
std::vector<RunConfig> candidates(const RunConfig& given, const SearchSpace& space);

// "--dp 2 --pp 2 --tp 4 --sp --zero 1 --grad-accumulation 8"
std::string flags_of(const RunConfig& config);

}  // namespace terrace::cli
