// When every task of a schedule runs, and what is alive meanwhile.
//
// A task starts when its rank is free and what it needs has come: a forward needs the forward of the stage before it, an input
// half its own forward and the input half of the stage behind it, a weight half its input half. An activation lives from its
// forward's start to the end of its weight half.
//
// Where several ranks share a stage its gradients are added up between them: once, or behind each round (a micro-batch of every
// replica), and then the next one's waits for it. The makespan ends with the last of these reductions, of which a rank does one
// after another.
//
// Pure. Threads: any. Errors: Error(Exit::runtime) with the tasks that wait for one another when nothing can run any more;
// Error(Exit::usage) when they only do because gradients are added up in turn.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

// Of a stage's gradient between the ranks that share it: all of it, and what is left when the backward has ended, whose first
// layers may be reduced while the others are computed.
struct ReductionCost {
  double seconds = 0, behind = 0;
};

// Seconds, for each stage; shorter lists repeat their last entry, so that one entry serves uniform stages.
struct StageCosts {
  std::vector<double> forward = {1}, input = {1}, weight = {1};
  double message = 0;  // from the end of a task to what another rank does with its result
  // Behind each round but the last one (empty: gradients are added up once), and behind that (empty: no rank shares a stage).
  std::vector<ReductionCost> reduction = {}, last_reduction = {};
  [[nodiscard]] double of(const Task& task) const;
  // From the end of what a task needs to where it can use it.
  [[nodiscard]] double between(const Task& need, const Task& task, bool remote) const;
  [[nodiscard]] bool folds_each() const { return !reduction.empty(); }
};

struct Timing {
  double makespan = 0;
  std::vector<double> idle;                // [rank], within the makespan
  std::vector<std::uint32_t> peak_live;    // [rank], activations of one stage each
  std::vector<std::vector<double>> start;  // [rank][position in its list]
  [[nodiscard]] double bubble() const;     // share of all ranks' time
};
Timing simulate(const Schedule& schedule, const StageCosts& costs);

}  // namespace terrace::pipeline
