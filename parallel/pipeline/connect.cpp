#include <terrace/parallel/pipeline/connect.h>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <terrace/core/error.h>
#include <terrace/parallel/pipeline/check.h>

namespace terrace::pipeline {
namespace {

using LaneKey = std::tuple<std::uint32_t, std::uint32_t, Payload>;
LaneKey lane_of(const Message& m) { return {m.source, m.destination, m.payload}; }

// What a task's result is sent as, if another rank needs it.
std::optional<Message> sent_by(const Schedule& s, const Task& t) {
  if (t.work == Work::weight) return std::nullopt;
  const bool forward = t.work == Work::forward;
  if (forward ? t.stage + 1 == s.placement.stages : t.stage == 0) return std::nullopt;
  const Message m{forward ? Payload::activation : Payload::gradient, s.rank_of(t.stage, t.micro_batch),
                  s.rank_of(forward ? t.stage + 1 : t.stage - 1, t.micro_batch), t.stage, t.micro_batch};
  if (m.source == m.destination) return std::nullopt;
  return m;
}

// What a task needs of another rank.
std::optional<Message> needed_by(const Schedule& s, const Task& t) {
  if (t.work == Work::weight) return std::nullopt;
  const bool forward = t.work == Work::forward;
  if (forward ? t.stage == 0 : t.stage + 1 == s.placement.stages) return std::nullopt;
  return sent_by(s, {forward ? Work::forward : Work::backward, forward ? t.stage - 1 : t.stage + 1, t.micro_batch});
}

// Runs the ranks with sends that block until they have been asked for, and writes what each of them did.
class Connecting {
 public:
  Connecting(const Schedule& s, Reduced reduced)
      : s_(s),
        reduced_(reduced),
        gradients_(s.placement.rank_of.size(), std::vector<std::uint32_t>(s.placement.stages)),
        rounds_reduced_(s.placement.stages),
        states_(std::size_t{2} * s.placement.stages * s.micro_batches),
        at_(s.tasks.size()),
        out_{.actions = std::vector<std::vector<Action>>(s.tasks.size()),
             .peak_waiting = std::vector<std::uint32_t>(s.tasks.size())},
        waiting_(s.tasks.size()) {
    for (const auto& tasks : s.tasks)
      for (const auto& task : tasks)
        if (const auto m = sent_by(s, task)) lanes_[lane_of(*m)].push_back(*m);
  }

  Connected run() {
    for (std::size_t rank = 0; rank < at_.size(); ++rank)
      if (!s_.tasks[rank].empty()) ask_for(s_.tasks[rank].front());
    do {
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t rank = 0; rank < at_.size(); ++rank)
          while (advance(rank)) moved = true;
      }
    } while (ask_early());
    for (std::size_t rank = 0; rank < at_.size(); ++rank)
      if (at_[rank].task < s_.tasks[rank].size()) stuck(rank);
    return std::move(out_);
  }

 private:
  enum class State : std::uint8_t { none, asked_for, sent };
  struct Place {
    std::size_t task = 0;
    bool ready = false;     // asked for what the next task needs
    bool computed = false;  // and has to send the result
  };

  State& state(const Message& m) {
    const auto row = (m.payload == Payload::activation ? 0U : 1U) * std::size_t{s_.placement.stages} + m.stage;
    return states_[row * s_.micro_batches + m.micro_batch];
  }
  // All of the lane that comes before it, too.
  void ask(const Message& wanted) {
    auto& lane = lanes_[lane_of(wanted)];
    auto& rank = out_.actions[wanted.destination];
    while (state(wanted) == State::none) {
      rank.push_back({Action::Op::receive, {}, lane.front()});
      state(lane.front()) = State::asked_for;
      lane.pop_front();
      out_.peak_waiting[wanted.destination] = std::max(out_.peak_waiting[wanted.destination], ++waiting_[wanted.destination]);
    }
  }
  void ask_for(const Task& task) {
    if (const auto needed = needed_by(s_, task)) ask(*needed);
  }

  bool advance(std::size_t rank) {
    auto& at = at_[rank];
    const auto& tasks = s_.tasks[rank];
    if (at.task == tasks.size()) return false;
    const auto& task = tasks[at.task];
    if (at.computed) {
      const auto m = sent_by(s_, task);
      if (m && state(*m) != State::asked_for) return false;
      if (m) {
        out_.actions[rank].push_back({Action::Op::send, {}, *m});
        state(*m) = State::sent;
      }
      at = {.task = at.task + 1};
      return true;
    }
    if (!at.ready && at.task + 1 < tasks.size()) ask_for(tasks[at.task + 1]);
    at.ready = true;
    const auto needed = needed_by(s_, task);
    if (needed && state(*needed) != State::sent) return false;
    if (waits_for_reduction(task)) return false;
    if (needed) --waiting_[rank];
    out_.actions[rank].push_back({Action::Op::compute, task, {}});
    at.computed = true;
    if (has_gradient(task)) add_gradient(task);
    return true;
  }

  [[nodiscard]] bool two_directions() const { return s_.placement.rank_of.size() > 1; }
  static bool has_gradient(const Task& task) { return task.work == Work::backward || task.work == Work::weight; }
  std::uint32_t& gradients(const Task& task) { return gradients_[s_.replica_of(task.micro_batch)][task.stage]; }
  // The last one of the round before is where this one goes.
  bool waits_for_reduction(const Task& task) {
    return two_directions() && reduced_ == Reduced::each_round && has_gradient(task) &&
           gradients(task) > rounds_reduced_[task.stage];
  }
  // Behind the last gradient of a round: its reduction, on all ranks of the stage at once.
  void add_gradient(const Task& task) {
    ++gradients(task);
    const auto replicas = static_cast<std::uint32_t>(s_.placement.rank_of.size());
    auto& round = rounds_reduced_[task.stage];
    for (const auto& of_replica : gradients_)
      if (of_replica[task.stage] <= round) return;
    ++round;
    if (!two_directions() || (reduced_ == Reduced::once && round * replicas < s_.micro_batches)) return;
    for (const auto& ranks : s_.placement.rank_of)
      out_.actions[ranks[task.stage]].push_back({Action::Op::reduce, {Work::weight, task.stage, round * replicas - 1}, {}});
  }

  [[noreturn]] void stuck(std::size_t rank) {
    const auto& task = s_.tasks[rank][at_[rank].task];
    if (!two_directions() || reduced_ == Reduced::once)
      throw std::logic_error("connect: a schedule that was proved cannot run");
    throw Error(fmt::format("rank {} waits at {} for the gradients of another direction, and that one for this rank: where "
                            "each micro-batch's gradient is added in turn, both directions must take them in turn, too",
                            rank, to_text(task)),
                Exit::usage);
  }

  // Everybody waits: one who cannot send is asked now.
  bool ask_early() {
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      if (!at_[rank].computed) continue;
      const auto m = sent_by(s_, s_.tasks[rank][at_[rank].task]);
      if (!m || state(*m) != State::none) continue;
      ask(*m);
      return true;
    }
    return false;
  }

  const Schedule& s_;
  const Reduced reduced_;
  std::vector<std::vector<std::uint32_t>> gradients_;  // [replica][stage] so many have been computed
  std::vector<std::uint32_t> rounds_reduced_;          // [stage]
  std::map<LaneKey, std::deque<Message>> lanes_;       // what is sent and not yet asked for
  std::vector<State> states_;
  std::vector<Place> at_;
  Connected out_;
  std::vector<std::uint32_t> waiting_;
};

}  // namespace

Connected connect(const Schedule& s, Reduced reduced) {
  check(s);
  return Connecting(s, reduced).run();
}

bool blocking_ends(const Schedule& s) {
  std::vector<std::vector<Action>> actions(s.tasks.size());
  for (std::size_t rank = 0; rank < s.tasks.size(); ++rank)
    for (const auto& task : s.tasks[rank]) {
      if (const auto m = needed_by(s, task)) actions[rank].push_back({Action::Op::receive, {}, *m});
      if (const auto m = sent_by(s, task)) actions[rank].push_back({Action::Op::send, {}, *m});
    }
  std::vector<std::size_t> at(actions.size());
  const auto next = [&](std::size_t rank) { return at[rank] < actions[rank].size() ? &actions[rank][at[rank]] : nullptr; };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < actions.size(); ++rank) {
      const auto* const send = next(rank);
      if (!send || send->op != Action::Op::send) continue;
      const auto* const receive = next(send->message.destination);
      if (!receive || receive->op != Action::Op::receive || !(receive->message == send->message)) continue;
      ++at[send->message.destination];
      ++at[rank];
      moved = true;
    }
  }
  for (std::size_t rank = 0; rank < actions.size(); ++rank)
    if (next(rank)) return false;
  return true;
}

}  // namespace terrace::pipeline
