// The configurations that terrace plan --search compares, as flags and as the library's candidates (parallel/plan/search).
//
// Owner: values. Threads: any. Errors: those of model_config() and plan_request().
#pragma once

#include <cstdint>
#include <string>

#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/parallel/plan/search/searched_run.h>

namespace terrace::cli {

struct RanksOfSearch {
  std::int64_t ranks = 1, ranks_per_node = 1;
  std::int64_t sequences = 1;  // of a step, on all ranks
};
// The run that `given` describes, whose degrees are searched. The result borrows both arguments.
SearchedRun searched_run(const RunConfig& given, const RanksOfSearch& ranks, const MachineProfile& profile);

// `given` with the candidate's degrees, ZeRO stage and micro-batches.
RunConfig config_of(RunConfig given, const Candidate& candidate);
// "--dp 2 --pp 2 --tp 4 --sp --zero 1 --grad-accumulation 8"
std::string flags_of(const RunConfig& config);

}  // namespace terrace::cli
