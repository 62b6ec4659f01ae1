// Computes when every task of a schedule runs, and how many activations are alive.
//
// A task starts when its rank is free and its inputs have arrived: a forward needs the forward of the previous stage, an input
// half its own forward and the input half of the next stage, a weight half its input half. An activation lives from the start
// of its forward to the end of its weight half.
//
// If several ranks share a stage, its gradients are summed between them: once, or after each round (a micro-batch of every
// replica). In the second case, the gradients of the next round wait for the reduction. A rank does reductions one after
// another; the makespan includes the last of them.
//
// Pure. Threads: any. Errors: Error(ErrorKind::failed) with the tasks that wait for one another if nothing can run any more;
// Error(ErrorKind::refused) if the only reason is that gradients are summed in turn.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

// The reduction of a stage's gradient between the ranks that share it. seconds: its whole time. behind: the part after the end
// of the backward; gradients of some layers may be reduced while others are computed.
struct ReductionCost {
  double seconds = 0, behind = 0;
};

// Seconds, for each stage; shorter lists repeat their last entry, so that one entry is enough for uniform stages.
struct StageCosts {
  std::vector<double> forward = {1}, input = {1}, weight = {1};
  double message = 0;  // from the end of a task until another rank can use its result
  // reduction: after each round but the last (empty: gradients are summed once). last_reduction: after the last round (empty:
  // no ranks share a stage).
  std::vector<ReductionCost> reduction = {}, last_reduction = {};
  [[nodiscard]] double of(const Task& task) const;
  // The delay from the end of a needed task until its result can be used.
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
