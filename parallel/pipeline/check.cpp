#include <terrace/parallel/pipeline/check.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/core/base/error.h>
#include <terrace/core/base/refused_setting.h>
#include <terrace/parallel/pipeline/done_table.h>

namespace terrace::pipeline {
namespace {

class Checker {
 public:
  explicit Checker(const Schedule& schedule)
      : s_(schedule),
        seen_(s_.placement, s_.micro_batches),
        next_backward_(s_.placement.rank_of.size(), std::vector<std::uint32_t>(s_.placement.stages)) {}

  void run() {
    if (s_.tasks.size() != s_.placement.ranks)
      throw Error(fmt::format("{} ranks have lists, of {}", s_.tasks.size(), s_.placement.ranks));
    versions();
    for (std::uint32_t rank = 0; rank < s_.tasks.size(); ++rank)
      for (std::size_t at = 0; at < s_.tasks[rank].size(); ++at) task(rank, at);
    for (std::uint32_t stage = 0; stage < s_.placement.stages; ++stage)
      for (std::uint32_t j = 0; j < s_.micro_batches; ++j)
        for (const auto work : {Work::forward, Work::input, Work::weight})
          if (!seen({work, stage, j}) && !(s_.forwards && work != Work::forward))
            throw Error(fmt::format("{} is missing on rank {}", to_text(Task{work, stage, j}), s_.rank_of(stage, j)));
  }

 private:
  void versions() const {
    if (!s_.asynchronous()) return;
    if (s_.placement.rank_of.size() != 1 || s_.micro_batches % s_.update_every != 0 || s_.reads.size() != s_.placement.stages)
      throw Error("an order that updates within the step has one replica, whole updates and versions of every stage");
    for (const auto& reads : s_.reads)
      if (reads.size() != s_.micro_batches)
        throw Error("an order that updates within the step says what each micro-batch reads");
  }
  bool seen(const Task& task) const { return seen_.of(task) != DoneTable::kNever; }

  void task(std::uint32_t rank, std::size_t at) {
    const auto& t = s_.tasks[rank][at];
    const auto fail = [&](const std::string& why) {
      throw Error(fmt::format("rank {}, position {}, {}: {}", rank, at, to_text(t), why));
    };
    if (t.stage >= s_.placement.stages) fail(fmt::format("there are {} stages", s_.placement.stages));
    if (t.micro_batch >= s_.micro_batches) fail(fmt::format("there are {} micro-batches", s_.micro_batches));
    if (s_.rank_of(t.stage, t.micro_batch) != rank) fail(fmt::format("belongs to rank {}", s_.rank_of(t.stage, t.micro_batch)));
    if (seen(t)) fail("has run already");
    const bool whole = t.work == Work::backward;
    if (whole && seen({Work::input, t.stage, t.micro_batch})) fail("its input half has run already");
    if ((whole || t.work == Work::input) && !seen({Work::forward, t.stage, t.micro_batch})) fail("its forward has not run");
    if (t.work == Work::weight && !seen({Work::input, t.stage, t.micro_batch})) fail("its input half has not run");
    if (t.work == Work::forward && s_.asynchronous()) {
      const auto made = next_backward_[0][t.stage] / s_.update_every, read = s_.reads[t.stage][t.micro_batch];
      if (read > made) fail(fmt::format("reads version {} of its weights, and {} updates have been made", read, made));
    }
    if (whole || t.work == Work::weight) {
      const auto replicas = static_cast<std::uint32_t>(s_.placement.rank_of.size());
      auto& next = next_backward_[s_.replica_of(t.micro_batch)][t.stage];
      if (t.micro_batch / replicas != next)
        fail(fmt::format("gradients fold in micro-batch order, and micro-batch {} is next",
                         next * replicas + s_.replica_of(t.micro_batch)));
      ++next;
    }
    seen_.set(t, 0);
  }

  const Schedule& s_;
  DoneTable seen_;
  std::vector<std::vector<std::uint32_t>> next_backward_;  // [replica][stage]
};

void check_graph(const Placement& p) {
  if (p.inputs.empty()) return;
  if (p.inputs.size() != p.stages) throw Error(fmt::format("{} stages have inputs, of {}", p.inputs.size(), p.stages));
  for (std::uint32_t stage = 0; stage < p.stages; ++stage) {
    const auto& inputs = p.inputs[stage];
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i] >= stage ||
          std::find(inputs.begin() + static_cast<std::ptrdiff_t>(i) + 1, inputs.end(), inputs[i]) != inputs.end())
        throw Error(fmt::format("stage {} cannot read stage {}: inputs are earlier stages, each once", stage, inputs[i]));
  }
}

}  // namespace

void check(const Schedule& schedule) {
  check_graph(schedule.placement);
  Checker(schedule).run();
}

void throw_gradients_out_of_turn(std::uint32_t rank, const Task& task) {
  throw RefusedSetting(
      "zero", fmt::format("this schedule deadlocks: rank {} waits at {} for the gradients of the other direction, which waits "
                          "for this rank, because gradients are added micro-batch by micro-batch\n  give `zero` 0 or 1 without "
                          "`canonical-reduction`, or `schedule` auto, which finds another schedule",
                          rank, to_text(task)));
}

void throw_deadlock(const Schedule& s, const std::vector<std::size_t>& position) {
  const DoneTable table(s.placement, s.micro_batches);
  const auto waits = [&](std::uint32_t rank) { return position[rank] < s.tasks[rank].size(); };
  // True if a task has run, that is, lies before the position in its rank's list.
  const auto has_run = [&](std::uint32_t rank, const Task& task) {
    const auto end = s.tasks[rank].begin() + static_cast<std::ptrdiff_t>(position[rank]);
    return std::any_of(s.tasks[rank].begin(), end, [&](const Task& t) {
      return t == task || (t.work == Work::backward && task.work == Work::input && t.stage == task.stage &&
                           t.micro_batch == task.micro_batch);
    });
  };
  std::uint32_t rank = 0;
  while (!waits(rank)) ++rank;
  std::vector<std::uint32_t> path;
  std::string text = "the ranks wait for one another:";
  std::vector<std::string> lines;
  while (std::ranges::find(path, rank) == path.end()) {
    path.push_back(rank);
    const auto& task = s.tasks[rank][position[rank]];
    auto next = rank;
    table.all_needs(task, [&](const Task& need) {
      const auto holder = s.rank_of(need.stage, need.micro_batch);
      if (has_run(holder, need)) return true;
      next = holder;
      lines.push_back(fmt::format("\n  rank {} at {} waits for {} of rank {}", rank, to_text(task), to_text(need), holder));
      return false;
    });
    if (next == rank) break;
    rank = next;
  }
  const auto begin = std::ranges::find(path, rank) - path.begin();  // the ranks before it are not part of the circle
  for (auto i = static_cast<std::size_t>(begin); i < lines.size(); ++i) text += lines[i];
  throw Error(text);
}

}  // namespace terrace::pipeline
