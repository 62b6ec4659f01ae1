// When each task of a pipeline was done: a table over work, stage and micro-batch. A whole backward counts as both halves.
//
// Owner: one simulation. Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

class DoneTable {
 public:
  static constexpr double kNever = -1;
  DoneTable(std::uint32_t stages, std::uint32_t micro_batches)
      : stages_(stages), micro_batches_(micro_batches), ends_(std::size_t{3} * stages * micro_batches, kNever) {}

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

  // What `task` needs first; fewer than two are there at the pipeline's ends.
  struct Needs {
    Task tasks[2];
    int count = 0;
  };
  [[nodiscard]] Needs needs(const Task& task) const {
    Needs n;
    const auto add = [&](Work work, std::uint32_t stage) { n.tasks[n.count++] = {work, stage, task.micro_batch}; };
    switch (task.work) {
      case Work::forward:
        if (task.stage > 0) add(Work::forward, task.stage - 1);
        break;
      case Work::backward:
      case Work::input:
        add(Work::forward, task.stage);
        if (task.stage + 1 < stages_) add(Work::input, task.stage + 1);
        break;
      case Work::weight: add(Work::input, task.stage); break;
    }
    return n;
  }

 private:
  [[nodiscard]] std::size_t place(Work work, std::uint32_t stage, std::uint32_t micro_batch) const {
    const std::size_t kind = work == Work::forward ? 0 : work == Work::input ? 1 : 2;
    return (kind * stages_ + stage) * micro_batches_ + micro_batch;
  }
  double& at(Work work, std::uint32_t stage, std::uint32_t micro_batch) { return ends_[place(work, stage, micro_batch)]; }

  std::uint32_t stages_, micro_batches_;
  std::vector<double> ends_;
};

}  // namespace terrace::pipeline
