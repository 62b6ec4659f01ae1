// When every task of a schedule runs, and what is alive meanwhile.
//
// A task starts when its rank is free and what it needs has come: a forward needs the forward of the stage before it, an input
// half its own forward and the input half of the stage behind it, a weight half its input half. An activation lives from its
// forward's start to the end of its weight half.
//
// Pure. Threads: any. Errors: Error(Exit::runtime) with the tasks that wait for one another when nothing can run any more.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

// Seconds, for each stage; shorter lists repeat their last entry, so that one entry serves uniform stages.
struct StageCosts {
  std::vector<double> forward = {1}, input = {1}, weight = {1};
  double message = 0;  // from the end of a task to what another rank does with its result
  [[nodiscard]] double of(const Task& task) const;
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
