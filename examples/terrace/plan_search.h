// terrace plan --search: which degrees of parallelism train a model fastest on so many ranks.
//
// Every legal product of data, pipeline and tensor ranks, in a row and in every grid, and every ZeRO stage is planned as
// `terrace plan` would plan it. All of them train on the same number of sequences a step. What the flags fix otherwise
// (budgets, schedule, micro-batch, recipe) stays.
//
// Threads: any; candidates are planned in parallel, and the result does not depend on it.
// Errors:  Error(Exit::usage) if no product is legal; Error(Exit::does_not_fit) if none fits, with the one that lacks least.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <terrace/core/error.h>
#include <terrace/core/machine.h>
#include <terrace/core/units.h>
#include <terrace/examples/terrace/run_config.h>
#include <terrace/memory/tier.h>

namespace terrace::cli {

struct SearchSpace {
  std::int64_t ranks = 1, ranks_per_node = 1;
  std::int64_t sequences = 1;  // of a step, on all ranks
  // Completes a candidate whose degrees and micro-batches are set: the cluster's budgets, say.
  std::function<RunConfig(RunConfig)> complete = [](RunConfig c) { return c; };
};
// The legal candidates: `given` with other degrees.
std::vector<RunConfig> candidates(const RunConfig& given, const SearchSpace& space);

struct FoundPlan {
  RunConfig config;
  double step_s = 0;                 // 0: it does not fit
  PerTier<std::uint64_t> peak = {};  // of the rank that needs most
  std::string binding = {};          // the bottleneck of the slowest rank
  std::string refusal = {};          // why it does not fit
  std::uint64_t missing_bytes = 0;
};
// "--dp 2 --pp 2 --tp 4 --sp --zero 1 --grad-accumulation 8"
std::string flags_of(const RunConfig& config);
// All candidates: those that fit, fastest first, then the others, least missing first.
std::vector<FoundPlan> search_plans(const RunConfig& given, const SearchSpace& space, const MachineProfile& profile);

Exit plan_search(const RunConfig& given, const SearchSpace& space, const MachineProfile& profile, std::int64_t shown);

}  // namespace terrace::cli
