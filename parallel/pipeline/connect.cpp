#include <terrace/parallel/pipeline/connect.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <tuple>

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

}  // namespace

Connected connect(const Schedule& s) {
  check(s);
  std::map<LaneKey, std::deque<Message>> lanes;  // what is sent and not yet asked for
  for (const auto& tasks : s.tasks)
    for (const auto& task : tasks)
      if (const auto m = sent_by(s, task)) lanes[lane_of(*m)].push_back(*m);

  Connected out{.actions = std::vector<std::vector<Action>>(s.tasks.size()),
                .peak_waiting = std::vector<std::uint32_t>(s.tasks.size())};
  for (std::size_t rank = 0; rank < s.tasks.size(); ++rank) {
    const auto& tasks = s.tasks[rank];
    auto& actions = out.actions[rank];
    std::uint32_t waiting = 0;
    const auto ask_for = [&](const Task& task) {
      const auto needed = needed_by(s, task);
      if (!needed) return;
      auto& lane = lanes[lane_of(*needed)];
      if (std::ranges::find(lane, *needed) == lane.end()) return;  // has been asked for with one behind it
      while (true) {
        const auto m = lane.front();
        lane.pop_front();
        actions.push_back({Action::Op::receive, {}, m});
        out.peak_waiting[rank] = std::max(out.peak_waiting[rank], ++waiting);
        if (m == *needed) return;
      }
    };
    if (!tasks.empty()) ask_for(tasks.front());
    for (std::size_t at = 0; at < tasks.size(); ++at) {
      if (at + 1 < tasks.size()) ask_for(tasks[at + 1]);
      if (needed_by(s, tasks[at])) --waiting;
      actions.push_back({Action::Op::compute, tasks[at], {}});
      if (const auto m = sent_by(s, tasks[at])) actions.push_back({Action::Op::send, {}, *m});
    }
  }
  return out;
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
