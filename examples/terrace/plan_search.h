// terrace plan --search: which degrees of parallelism train a model fastest on so many ranks.
//
// Every legal product is estimated by arithmetic first (plan_estimate.h), which also refuses those that fit no plan. The others
// are planned and simulated as `terrace plan` would do it, in the order of the estimates, until a deadline or a number of
// plans. What is then left is only estimated, and the output says so. All candidates train on the same number of sequences a
// step. What the flags fix otherwise (budgets, schedule, micro-batch, recipe) stays.
//
// Threads: any; candidates are planned in parallel. Without a deadline the list of the best does not depend on it. With one it
// depends on the speed of the machine.
// Errors:  Error(Exit::usage) if no product is legal; Error(Exit::does_not_fit) if none fits, with the one that lacks least.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <terrace/core/error.h>
#include <terrace/core/machine.h>
#include <terrace/core/units.h>
#include <terrace/examples/terrace/plan_candidates.h>
#include <terrace/examples/terrace/run_config.h>
#include <terrace/memory/tier.h>

namespace terrace::cli {

// How a candidate's step time is known.
enum class Known : std::uint8_t {
  simulated,     // planned as `terrace plan` does it
  extrapolated,  // planned with two smaller numbers of micro-batches
  estimated,     // by arithmetic
  slower,        // its computing alone takes longer than the steps of as many others as were wanted
  refused,       // no plan fits
  too_large,     // no plan fits, by arithmetic
};

struct FoundPlan {
  RunConfig config;
  Known known = Known::estimated;
  double step_s = 0;                 // 0: it does not fit
  bool at_least = false;             // of a pipeline's schedule alone, without moves
  double estimate_s = 0;             // 0: too large
  PerTier<std::uint64_t> peak = {};  // of the rank that needs most; 0 if only estimated
  std::string binding = {};          // the bottleneck of the slowest rank
  std::string refusal = {};          // why it does not fit
  std::uint64_t missing_bytes = 0;
};

struct SearchLimits {
  double seconds = 0;                // 0: no deadline
  std::int64_t plans = 0;            // that are tried, the best by estimate; 0: all
  std::size_t wanted = 0;            // candidates that cannot be among so many best are not planned; 0: all are
  bool extrapolates = false;         // plans very many micro-batches from fewer
  std::function<double()> now = {};  // seconds; empty: of a steady clock
};

// All candidates: simulated ones, fastest first; estimated ones, fastest first; slower ones; those that do not fit, least
// missing first.
std::vector<FoundPlan> search_plans(const RunConfig& given, const SearchSpace& space, const MachineProfile& profile,
                                    const SearchLimits& limits = {});

Exit plan_search(const RunConfig& given, const SearchSpace& space, const MachineProfile& profile, std::int64_t shown,
                 SearchLimits limits = {});

}  // namespace terrace::cli
