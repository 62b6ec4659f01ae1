// Finds the degrees of parallelism that train a model fastest on a given number of ranks.
//
//   auto run = searched_run(transformer, request, profile);
//   run.space.ranks = run.space.ranks_per_node = 8;
//   run.space.sequences = 64;  // of a step
//   const auto best = search_plans(run, profile, pool).front();  // best.candidate.degrees, best.step_s
//
// Every legal product is first estimated by arithmetic (estimate.h), which also refuses those that no plan fits. The others are
// planned and simulated, in the order of their estimates, until a deadline or a number of plans is reached. The rest is only
// estimated. All candidates train on the same number of sequences a step, with the same budgets.
//
// Owner:   values.
// Threads: any; candidates are planned in parallel. Without a deadline the list of the best does not depend on the number of
//          threads; with a deadline it depends on the speed of the machine.
// Errors:  none; a candidate that is refused says why.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/machine.h>
#include <terrace/memory/tier.h>
#include <terrace/parallel/plan/search/searched_run.h>

namespace terrace {

// How a candidate's step time is known.
enum class Known : std::uint8_t {
  simulated,     // by its plan
  extrapolated,  // planned with two smaller numbers of micro-batches
  estimated,     // by arithmetic
  slower,        // its computing alone takes longer than the steps of `wanted` other candidates
  refused,       // no plan fits
  too_large,     // no plan fits, by arithmetic
};

struct FoundPlan {
  Candidate candidate;
  Known known = Known::estimated;
  double step_s = 0;                 // 0: it does not fit
  bool at_least = false;             // step_s is that of a pipeline's schedule alone, without moves
  double estimate_s = 0;             // 0: too large
  PerTier<std::uint64_t> peak = {};  // of the rank that needs most; 0 if only estimated
  std::string binding = {};          // the bottleneck of the slowest rank
  std::string refusal = {};          // why it does not fit
  std::uint64_t missing_bytes = 0;   // kUnlimited: not known
};

struct SearchLimits {
  double seconds = 0;                // 0: no deadline
  std::int64_t plans = 0;            // how many are planned, the best by estimate; 0: all
  std::size_t wanted = 0;            // a candidate that cannot be among this many best is not planned; 0: all are
  bool extrapolates = false;         // derives the step of very many micro-batches from plans with fewer
  std::function<double()> now = {};  // returns seconds; empty: a steady clock
};

// Returns all candidates in this order: simulated, fastest first; estimated, fastest first; slower; those that do not fit,
// least missing first.
std::vector<FoundPlan> search_plans(const SearchedRun& run, const MachineProfile& profile, ThreadPool& pool,
                                    const SearchLimits& limits = {});

}  // namespace terrace
