#include <terrace/parallel/pipeline/simulate.h>

#include <algorithm>
#include <numeric>

#include <terrace/parallel/pipeline/check.h>
#include <terrace/parallel/pipeline/done_table.h>

namespace terrace::pipeline {
namespace {

template <class Value>
const Value& entry(const std::vector<Value>& values, std::uint32_t stage) {
  return values[std::min<std::size_t>(stage, values.size() - 1)];
}

// Runs each rank's list as far as the needed tasks have run. A rank that is stuck continues when the task for which it waits
// has run.
class Simulation {
 public:
  Simulation(const Schedule& schedule, const StageCosts& costs)
      : s_(schedule), costs_(costs), done_(s_.placement, s_.micro_batches), position_(s_.tasks.size()), free_(s_.tasks.size()) {
    timing_.start.resize(s_.tasks.size());
    for (std::size_t rank = 0; rank < s_.tasks.size(); ++rank) timing_.start[rank].reserve(s_.tasks[rank].size());
  }

  Timing run() {
    std::vector<std::uint32_t> runnable(s_.tasks.size());
    std::iota(runnable.rbegin(), runnable.rend(), 0U);
    while (!runnable.empty()) {
      const auto rank = runnable.back();
      runnable.pop_back();
      const auto before = position_[rank];
      while (position_[rank] < s_.tasks[rank].size() && step(rank)) {
      }
      if (position_[rank] == before) continue;
      for (std::uint32_t other = 0; other < s_.tasks.size(); ++other)
        if (other != rank && waiting_for(other, rank)) runnable.push_back(other);
    }
    for (std::size_t rank = 0; rank < s_.tasks.size(); ++rank)
      if (position_[rank] < s_.tasks[rank].size()) stuck();
    finish();
    return std::move(timing_);
  }

 private:
  [[nodiscard]] std::uint32_t replicas() const { return static_cast<std::uint32_t>(s_.placement.rank_of.size()); }
  template <class Visit>
  bool all_needs(const Task& task, const Visit& visit) const {
    return done_.all_needs(task, visit) && (!costs_.folds_each() || done_.all_of_round_before(task, replicas(), visit));
  }

  bool step(std::uint32_t rank) {
    const auto& task = s_.tasks[rank][position_[rank]];
    double ready = 0;
    const bool all_done = all_needs(task, [&](const Task& need) {
      const double end = done_.of(need);
      ready = std::max(ready, end + costs_.between(need, task, s_.rank_of(need.stage, need.micro_batch) != rank));
      return end != DoneTable::kNever;
    });
    if (!all_done) return false;
    const double start = std::max(ready, free_[rank]);
    timing_.start[rank].push_back(start);
    done_.set(task, free_[rank] = start + costs_.of(task));
    ++position_[rank];
    return true;
  }
  // True if the other rank's next task needs a task of this rank that has run, and so may run now.
  bool waiting_for(std::uint32_t other, std::uint32_t rank) const {
    if (position_[other] == s_.tasks[other].size()) return false;
    const auto& task = s_.tasks[other][position_[other]];
    return !all_needs(task, [&](const Task& need) {
      return s_.rank_of(need.stage, need.micro_batch) != rank || done_.of(need) == DoneTable::kNever;
    });
  }
  [[noreturn]] void stuck() const {
    for (std::size_t rank = 0; rank < s_.tasks.size(); ++rank) {
      if (position_[rank] == s_.tasks[rank].size()) continue;
      const auto& task = s_.tasks[rank][position_[rank]];
      if (done_.all_needs(task, [&](const Task& need) { return done_.of(need) != DoneTable::kNever; }))
        throw_gradients_out_of_turn(static_cast<std::uint32_t>(rank), task);
    }
    throw_deadlock(s_, position_);
  }
  // The end of a rank's last reduction; reductions run one after another in the order of its list.
  [[nodiscard]] double reduced(const std::vector<Task>& tasks) const {
    double end = 0;
    for (const auto& task : tasks) {
      if (task.work != Work::backward && task.work != Work::weight) continue;
      const auto begin = task.micro_batch / replicas() * replicas();
      const bool last = begin + replicas() >= s_.micro_batches;
      if (!last && !costs_.folds_each()) continue;
      double ready = 0;
      for (auto j = begin; j < std::min(begin + replicas(), s_.micro_batches); ++j)
        ready = std::max(ready, done_.of({Work::weight, task.stage, j}));
      const auto& cost = entry(last ? costs_.last_reduction : costs_.reduction, task.stage);
      end = std::max(end + cost.seconds, ready + cost.behind);
    }
    return end;
  }
  void finish() {
    timing_.makespan = *std::ranges::max_element(free_);
    if (!costs_.last_reduction.empty())
      for (const auto& tasks : s_.tasks) timing_.makespan = std::max(timing_.makespan, reduced(tasks));
    for (const auto& tasks : s_.tasks) {
      double busy = 0;
      std::uint32_t live = 0, peak = 0;
      for (const auto& task : tasks) {
        busy += costs_.of(task);
        if (task.work == Work::forward) peak = std::max(peak, ++live);
        if (task.work == Work::backward || task.work == Work::weight) --live;
      }
      timing_.idle.push_back(timing_.makespan - busy);
      timing_.peak_live.push_back(peak);
    }
  }

  const Schedule& s_;
  const StageCosts& costs_;
  DoneTable done_;
  std::vector<std::size_t> position_;
  std::vector<double> free_;
  Timing timing_;
};

}  // namespace

double StageCosts::of(const Task& task) const {
  switch (task.work) {
    case Work::forward: return entry(forward, task.stage);
    case Work::input: return entry(input, task.stage);
    case Work::weight: return entry(weight, task.stage);
    case Work::backward: break;
  }
  return entry(input, task.stage) + entry(weight, task.stage);
}

double StageCosts::between(const Task& need, const Task& task, bool remote) const {
  const bool round_before = need.stage == task.stage && need.micro_batch != task.micro_batch;
  return round_before ? entry(reduction, task.stage).behind : remote ? message : 0;
}

double Timing::bubble() const {
  return std::accumulate(idle.begin(), idle.end(), 0.0) / (makespan * static_cast<double>(idle.size()));
}

Timing simulate(const Schedule& schedule, const StageCosts& costs) {
  check(schedule);
  return Simulation(schedule, costs).run();
}

}  // namespace terrace::pipeline
