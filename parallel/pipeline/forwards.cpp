#include <terrace/parallel/pipeline/forwards.h>

#include <optional>

#include <terrace/parallel/pipeline/done_table.h>

namespace terrace::pipeline {

Schedule forwards(const Placement& placement, std::uint32_t micro_batches) {
  Schedule s{.placement = placement,
             .micro_batches = micro_batches,
             .tasks = std::vector<std::vector<Task>>(placement.ranks),
             .forwards = true};
  const auto replicas = static_cast<std::uint32_t>(placement.rank_of.size());
  DoneTable done(placement, micro_batches);
  std::vector<std::vector<std::uint32_t>> next(replicas, std::vector<std::uint32_t>(placement.stages));
  for (std::uint32_t r = 0; r < replicas; ++r) next[r].assign(placement.stages, r);
  const auto ready = [&](std::uint32_t rank, double now) -> std::optional<Task> {
    for (auto stage = placement.stages; stage-- > 0;)
      for (std::uint32_t r = 0; r < replicas; ++r) {
        const Task task{Work::forward, stage, next[r][stage]};
        const auto is_done = [&](const Task& need) { return done.of(need) != DoneTable::kNever && done.of(need) <= now; };
        if (placement.rank_of[r][stage] == rank && task.micro_batch < micro_batches && done.all_needs(task, is_done))
          return task;
      }
    return std::nullopt;
  };
  double now = 0;
  for (std::uint64_t left = std::uint64_t{placement.stages} * micro_batches; left > 0; ++now)
    for (std::uint32_t rank = 0; rank < placement.ranks; ++rank) {
      const auto task = ready(rank, now);
      if (!task) continue;
      done.set(*task, now + 1);
      s.tasks[rank].push_back(*task);
      next[s.replica_of(task->micro_batch)][task->stage] += replicas;
      --left;
    }
  return s;
}

}  // namespace terrace::pipeline
