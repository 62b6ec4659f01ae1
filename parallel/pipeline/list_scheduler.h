// Writes an order by running it: whenever a rank is idle it takes, of what is ready, the first by a policy, as long as its live
// activations stay under a cap. Graham's list scheduling (1966); the cap is what the tiers' budgets leave for activations.
//
// Pure. Threads: any. Errors: Error(Exit::usage) when no order exists under the cap: a rank needs room for one activation of
// each of its stages.
#pragma once

#include <cstdint>

#include <terrace/parallel/pipeline/schedule.h>
#include <terrace/parallel/pipeline/simulate.h>

namespace terrace::pipeline {

// What goes first of what is ready: a kind of work before another; of one kind the deepest stage, or the one nearest to the
// input.
struct ListPolicy {
  Work first = Work::input, second = Work::forward, third = Work::weight;
  bool deepest_forward = true, deepest_input = true;
};
struct ListOptions {
  std::uint32_t micro_batches = 1;
  std::uint32_t cap = 1;  // live activations a rank, of one stage each
  bool halves = true;     // false: backwards are whole
  StageCosts costs = {};  // with reductions behind each round a gradient waits for those of the round before
};
Schedule list_schedule(const Placement& placement, const ListOptions& options, const ListPolicy& policy = {});

// The one with the shortest makespan of all policies: none of them is best for every number of ranks and micro-batches.
Schedule best_list_schedule(const Placement& placement, const ListOptions& options);

}  // namespace terrace::pipeline
