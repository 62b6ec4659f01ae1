// When each task of a pipeline was done: a table over work, stage and micro-batch. A whole backward counts as both halves.
//
// Owner: one simulation. Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>
#include <terrace/parallel/pipeline/stage_graph.h>

namespace terrace::pipeline {

// True if a task writes gradients that are reduced. In two directions, the last stage's input half counts too, because the last
// layer's backward is whole and runs in the place of its input half.
inline bool writes_gradient(const Task& task, std::uint32_t stages, std::uint32_t replicas) {
  if (task.work == Work::input) return replicas > 1 && task.stage + 1 == stages;
  return task.work != Work::forward;
}

class DoneTable {
 public:
  static constexpr double kNever = -1;
  DoneTable(const Placement& placement, std::uint32_t micro_batches)
      : graph_(placement),
        stages_(placement.stages),
        micro_batches_(micro_batches),
        ends_(std::size_t{3} * stages_ * micro_batches, kNever) {}

  void set(const Task& task, double end) {
    if (task.work == Work::backward) {
      at(Work::input, task.stage, task.micro_batch) = at(Work::weight, task.stage, task.micro_batch) = end;
    } else {
      at(task.work, task.stage, task.micro_batch) = end;
    }
  }
  [[nodiscard]] double of(const Task& task) const {
    return ends_[place(task.work == Work::backward ? Work::weight : task.work, task.stage, task.micro_batch)];
  }

  // Visits the tasks that must run before `task`, until `visit` returns false; returns true if it never did.
  template <class Visit>
  bool all_needs(const Task& task, const Visit& visit) const {
    const auto all_of = [&](Work work, std::span<const std::uint32_t> stages) {
      return std::ranges::all_of(stages, [&](std::uint32_t stage) { return visit(Task{work, stage, task.micro_batch}); });
    };
    switch (task.work) {
      case Work::forward: return all_of(Work::forward, graph_.inputs(task.stage));
      case Work::weight: return visit(Task{Work::input, task.stage, task.micro_batch});
      default:
        return visit(Task{Work::forward, task.stage, task.micro_batch}) && all_of(Work::input, graph_.readers(task.stage));
    }
  }

  // For a gradient that is summed between ranks after each round: visits the gradients of the previous round.
  template <class Visit>
  bool all_of_round_before(const Task& task, std::uint32_t replicas, const Visit& visit) const {
    const bool gradient = writes_gradient(task, stages_, replicas);
    const auto begin = task.micro_batch / replicas * replicas;
    for (std::uint32_t j = begin - std::min(begin, replicas); gradient && j < begin; ++j)
      if (!visit(Task{Work::weight, task.stage, j})) return false;
    return true;
  }

 private:
  [[nodiscard]] std::size_t place(Work work, std::uint32_t stage, std::uint32_t micro_batch) const {
    const std::size_t kind = work == Work::forward ? 0 : work == Work::input ? 1 : 2;
    return (kind * stages_ + stage) * micro_batches_ + micro_batch;
  }
  double& at(Work work, std::uint32_t stage, std::uint32_t micro_batch) { return ends_[place(work, stage, micro_batch)]; }

  StageGraph graph_;
  std::uint32_t stages_, micro_batches_;
  std::vector<double> ends_;
};

}  // namespace terrace::pipeline
