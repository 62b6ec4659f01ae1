// Writes an order by simulating it: an idle rank takes the ready task that a policy puts first, if its live activations stay
// within a cap. Graham's list scheduling (1966); the cap is the number of activations that fit into the tiers' budgets.
//
// Pure. Threads: any. Errors: Error(ErrorKind::refused) if no order exists under the cap: a rank needs room for one activation
// of each of its stages.
#pragma once

#include <cstdint>

#include <terrace/parallel/pipeline/schedule.h>
#include <terrace/parallel/pipeline/simulate.h>

namespace terrace::pipeline {

// The order of ready tasks: one kind of work before another; within a kind, the deepest stage or the one nearest to the input.
struct ListPolicy {
  Work first = Work::input, second = Work::forward, third = Work::weight;
  bool deepest_forward = true, deepest_input = true;
};
struct ListOptions {
  std::uint32_t micro_batches = 1;
  std::uint32_t cap = 1;  // live activations of a rank, each of one stage
  bool halves = true;     // false: backwards are whole
  StageCosts costs = {};  // if they reduce after each round, a gradient waits for the previous round
};
Schedule list_schedule(const Placement& placement, const ListOptions& options, const ListPolicy& policy = {});

// The order with the shortest makespan over all policies; no single policy is best for every number of ranks and micro-batches.
Schedule best_list_schedule(const Placement& placement, const ListOptions& options);

}  // namespace terrace::pipeline
