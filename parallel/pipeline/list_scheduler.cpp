#include <terrace/parallel/pipeline/list_scheduler.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include <terrace/core/base/error.h>
#include <terrace/parallel/pipeline/done_table.h>

namespace terrace::pipeline {
namespace {

constexpr double kNotYet = std::numeric_limits<double>::infinity();

// A stage on one rank for one replica's micro-batches, and the next micro-batch for each kind of work.
struct Local {
  std::uint32_t stage = 0, replica = 0;
  std::uint32_t forward = 0, input = 0, weight = 0;  // micro-batches
  std::uint32_t deeper = 0;                          // later stages on this rank: each needs room for one activation
};

class Scheduler {
 public:
  Scheduler(const Placement& placement, const ListOptions& options, const ListPolicy& policy)
      : options_(options),
        policy_(policy),
        schedule_{placement, options.micro_batches, std::vector<std::vector<Task>>(placement.ranks)},
        done_(placement, options.micro_batches),
        locals_(placement.ranks),
        free_(placement.ranks),
        live_(placement.ranks) {
    for (std::uint32_t replica = 0; replica < placement.rank_of.size(); ++replica)
      for (std::uint32_t stage = 0; stage < placement.stages; ++stage)
        locals_[placement.rank_of[replica][stage]].push_back({stage, replica, replica, replica, replica, 0});
    for (auto& locals : locals_) {
      // The deepest stage first: its forwards bring the backwards.
      std::ranges::stable_sort(locals, std::ranges::greater(), &Local::stage);
      for (std::uint32_t i = 0; i < locals.size(); ++i) {
        for (std::uint32_t j = 0; j < i; ++j)
          if (locals[j].replica == locals[i].replica) ++locals[i].deeper;
        if (options.cap <= locals[i].deeper)
          throw Error(fmt::format("a cap of {} live activations is below the {} that a rank's stages need", options.cap,
                                  locals[i].deeper + 1),
                      ErrorKind::refused);
      }
    }
  }

  Schedule run() {
    for (double now = 0; now != kNotYet;) {
      bool started = false;
      for (std::uint32_t rank = 0; rank < locals_.size(); ++rank)
        if (free_[rank] <= now && start_one(rank, now)) started = true;
      if (!started) now = next_event(now);
    }
    for (const auto& locals : locals_)
      for (const auto& local : locals)
        if (local.input < options_.micro_batches)
          throw Error(fmt::format("no order under a cap of {} live activations was found", options_.cap), ErrorKind::refused);
    return std::move(schedule_);
  }

 private:
  // The time at which everything that the task needs has arrived; kNotYet if some of it has not been started.
  double ready(const Task& task, std::uint32_t rank) const {
    double latest = 0;
    const auto visit = [&](const Task& need) {
      const double end = done_.of(need);
      const bool remote = schedule_.rank_of(need.stage, need.micro_batch) != rank;
      latest = std::max(latest, end + options_.costs.between(need, task, remote));
      return end != DoneTable::kNever;
    };
    const auto replicas = static_cast<std::uint32_t>(schedule_.placement.rank_of.size());
    const bool all_started =
        done_.all_needs(task, visit) && (!options_.costs.folds_each() || done_.all_of_round_before(task, replicas, visit));
    return all_started ? latest : kNotYet;
  }
  std::optional<Task> next(const Local& local, Work work) const {
    const auto j = work == Work::forward ? local.forward : work == Work::weight ? local.weight : local.input;
    if (j >= options_.micro_batches) return std::nullopt;
    return Task{work, local.stage, j};
  }
  bool has_room(const Local& local, std::uint32_t rank) const { return live_[rank] + local.deeper < options_.cap; }

  bool start_one(std::uint32_t rank, double now) {
    for (auto work : {policy_.first, policy_.second, policy_.third}) {
      if (work == Work::weight && !options_.halves) continue;
      if (work == Work::input && !options_.halves) work = Work::backward;
      const bool deepest = work == Work::forward ? policy_.deepest_forward : policy_.deepest_input;
      auto& locals = locals_[rank];
      for (std::size_t i = 0; i < locals.size(); ++i) {
        auto& local = locals[deepest ? i : locals.size() - 1 - i];
        const auto task = next(local, work);
        if (!task || ready(*task, rank) > now) continue;
        if (work == Work::forward && !has_room(local, rank)) continue;
        start(local, *task, rank, now);
        return true;
      }
    }
    return false;
  }

  void start(Local& local, const Task& task, std::uint32_t rank, double now) {
    const auto step = static_cast<std::uint32_t>(schedule_.placement.rank_of.size());
    free_[rank] = now + options_.costs.of(task);
    done_.set(task, free_[rank]);
    schedule_.tasks[rank].push_back(task);
    if (task.work == Work::forward) {
      local.forward += step;
      ++live_[rank];
    } else if (task.work == Work::weight) {
      local.weight += step;
      --live_[rank];
    } else {
      local.input += step;
      if (task.work == Work::backward) --live_[rank];
    }
  }

  // The next moment at which some rank may start a task: it becomes free, or something that it needs arrives.
  double next_event(double now) const {
    double soonest = kNotYet;
    for (std::uint32_t rank = 0; rank < locals_.size(); ++rank) {
      if (free_[rank] > now) soonest = std::min(soonest, free_[rank]);
      for (const auto& local : locals_[rank])
        for (const auto work : {Work::forward, options_.halves ? Work::input : Work::backward, Work::weight})
          if (const auto task = next(local, work); task && (options_.halves || work != Work::weight)) {
            const double at = ready(*task, rank);
            if (at > now) soonest = std::min(soonest, at);
          }
    }
    return soonest;
  }

  const ListOptions& options_;
  const ListPolicy& policy_;
  Schedule schedule_;
  DoneTable done_;
  std::vector<std::vector<Local>> locals_;  // [rank]
  std::vector<double> free_;
  std::vector<std::uint32_t> live_;
};

}  // namespace

Schedule list_schedule(const Placement& placement, const ListOptions& options, const ListPolicy& policy) {
  return Scheduler(placement, options, policy).run();
}

Schedule best_list_schedule(const Placement& placement, const ListOptions& options) {
  std::optional<Schedule> best;
  double makespan = kNotYet;
  std::optional<Error> why;
  for (const auto& [first, second, third] : {std::tuple{Work::input, Work::forward, Work::weight},
                                             {Work::forward, Work::input, Work::weight},
                                             {Work::input, Work::weight, Work::forward}})
    for (const bool deepest_forward : {true, false})
      for (const bool deepest_input : {true, false}) {
        try {
          auto schedule = list_schedule(placement, options, {first, second, third, deepest_forward, deepest_input});
          const double time = simulate(schedule, options.costs).makespan;
          if (time >= makespan) continue;
          makespan = time;
          best = std::move(schedule);
        } catch (const Error& error) {
          why = error;
        }
      }
  if (!best) throw Error(*why);
  return std::move(*best);
}

}  // namespace terrace::pipeline
