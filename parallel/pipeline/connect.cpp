#include <terrace/parallel/pipeline/connect.h>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include <terrace/core/base/refused_setting.h>
#include <terrace/parallel/pipeline/check.h>
#include <terrace/parallel/pipeline/cut_edges.h>
#include <terrace/parallel/pipeline/done_table.h>

namespace terrace::pipeline {
namespace {

using LaneKey = std::tuple<std::uint32_t, std::uint32_t, Payload>;

// One activation or gradient that crosses an edge for a micro-batch.
struct Crossing {
  std::uint32_t edge = 0, micro_batch = 0;
  Payload payload = Payload::activation;
};

// The messages of a schedule's tasks. Callers query the tasks of each rank in the order of its list.
class Messages {
 public:
  explicit Messages(const Schedule& s) : s_(s), edges_(s.placement), ungraded_(std::size_t{edges_.count()} * s.micro_batches) {
    for (std::uint32_t e = 0; e < edges_.count(); ++e)
      std::fill_n(ungraded_.begin() + static_cast<std::ptrdiff_t>(place(e, 0)), s.micro_batches, edges_[e].readers);
  }
  // The messages that carry the task's result. A gradient is sent when the last of its readers on that rank has added to it.
  std::vector<Crossing> sent_by(const Task& t) {
    std::vector<Crossing> all;
    if (t.work == Work::weight) return all;
    const auto replica = s_.replica_of(t.micro_batch);
    if (t.work == Work::forward) {
      for (const auto e : edges_.out_of(replica, t.stage)) all.push_back({e, t.micro_batch, Payload::activation});
      return all;
    }
    for (const auto e : edges_.into(replica, t.stage))
      if (--ungraded_[place(e, t.micro_batch)] == 0) all.push_back({e, t.micro_batch, Payload::gradient});
    return all;
  }
  // The messages that the task needs from other ranks.
  [[nodiscard]] std::vector<Crossing> needed_by(const Task& t) const {
    std::vector<Crossing> all;
    if (t.work == Work::weight) return all;
    const auto replica = s_.replica_of(t.micro_batch);
    const bool forward = t.work == Work::forward;
    for (const auto e : forward ? edges_.into(replica, t.stage) : edges_.out_of(replica, t.stage))
      all.push_back({e, t.micro_batch, forward ? Payload::activation : Payload::gradient});
    return all;
  }
  [[nodiscard]] std::uint32_t edges() const { return edges_.count(); }
  [[nodiscard]] Message message(const Crossing& c) const {
    const auto& e = edges_[c.edge];
    const bool forward = c.payload == Payload::activation;
    return {c.payload, forward ? e.from : e.to, forward ? e.to : e.from, e.stage, c.micro_batch};
  }
  [[nodiscard]] LaneKey lane_of(const Crossing& c) const {
    const auto m = message(c);
    return {m.source, m.destination, m.payload};
  }

 private:
  [[nodiscard]] std::size_t place(std::uint32_t edge, std::uint32_t micro_batch) const {
    return std::size_t{edge} * s_.micro_batches + micro_batch;
  }
  const Schedule& s_;
  CutEdges edges_;
  std::vector<std::uint32_t> ungraded_;  // [edge, micro-batch] readers whose backward has not run
};

// Simulates the ranks with sends that block until the receive is posted, and records each rank's actions.
class Connecting {
 public:
  Connecting(const Schedule& s, Reduced reduced, Verdicts verdicts)
      : s_(s),
        messages_(s),
        reduced_(reduced),
        verdicts_(verdicts),
        gradients_(s.placement.rank_of.size(), std::vector<std::uint32_t>(s.placement.stages)),
        rounds_reduced_(s.placement.stages),
        states_(std::size_t{2} * messages_.edges() * s.micro_batches),
        at_(s.tasks.size()),
        out_{.actions = std::vector<std::vector<Action>>(s.tasks.size()),
             .peak_waiting = std::vector<std::uint32_t>(s.tasks.size())},
        waiting_(s.tasks.size()) {
    auto in_order = messages_;
    for (const auto& tasks : s.tasks)
      for (const auto& task : tasks)
        for (const auto& c : in_order.sent_by(task)) lanes_[messages_.lane_of(c)].push_back(c);
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
  enum class State : std::uint8_t { none, asked_for, sent, used };
  struct Place {
    std::size_t task = 0;
    bool ready = false;                  // the receives for the next task are posted
    bool computed = false;               // the task has run; its result must be sent
    std::vector<Crossing> to_send = {};  // the messages that are left
  };

  State& state(const Crossing& c) {
    const auto row = (c.payload == Payload::activation ? 0U : 1U) * std::size_t{messages_.edges()} + c.edge;
    return states_[row * s_.micro_batches + c.micro_batch];
  }
  // Posts the receive, and those for all earlier messages of its lane.
  void ask(const Crossing& wanted) {
    auto& lane = lanes_[messages_.lane_of(wanted)];
    const auto rank = messages_.message(wanted).destination;
    while (state(wanted) == State::none) {
      out_.actions[rank].push_back({Action::Op::receive, {}, messages_.message(lane.front())});
      state(lane.front()) = State::asked_for;
      lane.pop_front();
      out_.peak_waiting[rank] = std::max(out_.peak_waiting[rank], ++waiting_[rank]);
    }
  }
  void ask_for(const Task& task) {
    for (const auto& needed : messages_.needed_by(task)) ask(needed);
  }
  bool send_results(std::size_t rank) {
    auto& at = at_[rank];
    bool sent = false;
    for (; !at.to_send.empty() && state(at.to_send.front()) == State::asked_for; sent = true) {
      out_.actions[rank].push_back({Action::Op::send, {}, messages_.message(at.to_send.front())});
      state(at.to_send.front()) = State::sent;
      at.to_send.erase(at.to_send.begin());
    }
    if (!at.to_send.empty()) return sent;
    at = {.task = at.task + 1};
    return true;
  }

  bool advance(std::size_t rank) {
    auto& at = at_[rank];
    const auto& tasks = s_.tasks[rank];
    if (at.task == tasks.size()) return false;
    const auto& task = tasks[at.task];
    if (at.computed) return send_results(rank);
    if (!at.ready && at.task + 1 < tasks.size()) ask_for(tasks[at.task + 1]);
    at.ready = true;
    const auto needed = messages_.needed_by(task);
    for (const auto& c : needed)
      if (state(c) < State::sent) return false;
    if (waits_for_reduction(task) || waits_for_verdict(rank, task)) return false;
    for (const auto& c : needed)
      if (std::exchange(state(c), State::used) != State::used) --waiting_[rank];
    out_.actions[rank].push_back({Action::Op::compute, task, {}});
    at.computed = true;
    at.to_send = messages_.sent_by(task);
    if (has_gradient(task)) add_gradient(task);
    return true;
  }

  [[nodiscard]] bool two_directions() const { return s_.placement.rank_of.size() > 1; }
  static bool has_gradient(const Task& task) { return task.work == Work::backward || task.work == Work::weight; }
  std::uint32_t& gradients(const Task& task) { return gradients_[s_.replica_of(task.micro_batch)][task.stage]; }
  // This gradient uses the place of the previous round's gradient, which must have been reduced.
  bool waits_for_reduction(const Task& task) {
    const auto replicas = static_cast<std::uint32_t>(s_.placement.rank_of.size());
    return two_directions() && reduced_ == Reduced::each_round && writes_gradient(task, s_.placement.stages, replicas) &&
           task.micro_batch / replicas > rounds_reduced_[task.stage];
  }
  // How many verdicts all ranks, or one rank, can have run: the number of updates for which all their stages have computed the
  // gradients.
  [[nodiscard]] std::uint32_t given(std::optional<std::size_t> by = {}) const {
    auto least = s_.micro_batches;
    for (std::uint32_t stage = 0; stage < s_.placement.stages; ++stage)
      if (!by || s_.placement.rank_of.front()[stage] == *by) least = std::min(least, gradients_.front()[stage]);
    return least / s_.update_every;
  }
  [[nodiscard]] bool waits_for_verdict(std::size_t rank, const Task& task) const {
    if (verdicts_ == Verdicts::none) return false;
    const auto before = has_gradient(task) ? task.micro_batch / s_.update_every : 0;
    return given() < std::max(before, verdicts_ == Verdicts::before_all ? given(rank) : 0);
  }
  // Counts the gradient. After the last one of a round, adds the reduction on all ranks of the stage at once.
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
    if (verdicts_ != Verdicts::none) throw_verdicts_in_a_circle(rank, task);
    if (!two_directions() || reduced_ == Reduced::once)
      throw std::logic_error("connect: a schedule that was proved cannot run");
    throw_gradients_out_of_turn(static_cast<std::uint32_t>(rank), task);
  }

  [[noreturn]] void throw_verdicts_in_a_circle(std::size_t rank, const Task& task) const {
    throw RefusedSetting(
        "grad-clip",
        fmt::format(
            "this schedule deadlocks with `grad-clip`: an update needs the norm of all stages' gradients, and rank {} at "
            "{} waits for that norm{} or for a rank that waits for it\n  give `grad-clip` 0{}, or another `schedule`",
            rank, to_text(task), verdicts_ == Verdicts::before_all ? ", after which weights are gathered," : "",
            verdicts_ == Verdicts::before_all ? ", `zero` 1" : ""));
  }

  // All ranks wait. Posts the receive for a rank that cannot send yet.
  bool ask_early() {
    for (std::size_t rank = 0; rank < at_.size(); ++rank) {
      const auto& to_send = at_[rank].to_send;
      if (to_send.empty() || state(to_send.front()) != State::none) continue;
      ask(to_send.front());
      return true;
    }
    return false;
  }

  const Schedule& s_;
  Messages messages_;
  const Reduced reduced_;
  const Verdicts verdicts_;
  std::vector<std::vector<std::uint32_t>> gradients_;  // [replica][stage] how many have been computed
  std::vector<std::uint32_t> rounds_reduced_;          // [stage]
  std::map<LaneKey, std::deque<Crossing>> lanes_;      // messages whose receive is not posted yet
  std::vector<State> states_;
  std::vector<Place> at_;
  Connected out_;
  std::vector<std::uint32_t> waiting_;
};

}  // namespace

Connected connect(const Schedule& s, Reduced reduced, Verdicts verdicts) {
  check(s);
  return Connecting(s, reduced, verdicts).run();
}

bool blocking_ends(const Schedule& s) {
  std::vector<std::vector<Action>> actions(s.tasks.size());
  Messages messages(s);
  for (std::size_t rank = 0; rank < s.tasks.size(); ++rank) {
    std::set<std::tuple<std::uint32_t, std::uint32_t, Payload>> received;  // once, by the first task that needs it
    for (const auto& task : s.tasks[rank]) {
      for (const auto& c : messages.needed_by(task))
        if (received.emplace(c.edge, c.micro_batch, c.payload).second)
          actions[rank].push_back({Action::Op::receive, {}, messages.message(c)});
      for (const auto& c : messages.sent_by(task)) actions[rank].push_back({Action::Op::send, {}, messages.message(c)});
    }
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
