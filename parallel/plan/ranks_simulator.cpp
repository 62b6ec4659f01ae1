#include <terrace/parallel/plan/ranks_simulator.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <variant>

#include <terrace/core/base/error.h>
#include <terrace/parallel/walk/walk.h>

namespace terrace::planning {
namespace {

struct Computation {
  Action action;
  Clock after;
  Lane lane{};
};
struct Meeting {};  // all ranks meet at the end of a step's program and share losses and squares
struct StepEnd {};
using Event = std::variant<Move, Computation, Meeting, StepEnd>;

// The decisions of one rank's walk, in order.
class Decisions final : public walk::Sink {
 public:
  void move(const Move& m) override { events.emplace_back(m); }
  void compute(const Action& action, std::span<const Use>, const memory::Residency::Granted& granted, Lane lane,
               std::uint64_t) override {
    events.emplace_back(Computation{action, granted.after, lane});
  }
  std::vector<Event> events;
};

std::vector<Event> walk_alone(const Plan& plan, const StepMap& map, const RanksLife& life) {
  memory::Belady policy;
  memory::Residency residency(plan.capacity, policy, plan.generations);
  map.chunks().add_to(residency);
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
    if (map.committed(ChunkId(c))) residency.reserve_on_disk(ChunkId(c));
  walk::Walk walk(map, residency, policy);
  Decisions decided;
  const auto& programs = plan.programs;
  walk.run(programs.fill, decided);
  decided.events.emplace_back(Meeting{});
  for (std::uint64_t s = 1; s <= life.steps; ++s) {
    const bool pending = programs.leaves_pending() && s > 1 && !life.drain_at_end;
    walk.run(!programs.leaves_pending() || pending ? programs.steady : programs.first, decided);
    decided.events.emplace_back(Meeting{});
    if (programs.leaves_pending() && life.drain_at_end) walk.run(programs.drain, decided);
    decided.events.emplace_back(StepEnd{});
  }
  return std::move(decided.events);
}

class Ranks {
 public:
  Ranks(std::span<const Plan> plans, const Model& model, const CostsOf& costs_of, const MachineProfile& profile,
        const RanksLife& life)
      : steps_(life.steps) {
    for (std::size_t r = 0; r < plans.size(); ++r) {
      auto& rank = ranks_.emplace_back();
      rank.map = std::make_unique<StepMap>(model, plans[r].map);
      rank.costs = costs_of(*rank.map);
      rank.results_s = rank.costs->seconds_of_results(plans[r].programs.steady);
      rank.trace = life.traces ? &life.traces->at(r) : nullptr;
      rank.simulator = std::make_unique<walk::Simulator>(
          *rank.costs, profile, rank.trace, [map = rank.map.get()](ChunkId chunk) { return map->describe(chunk); });
      rank.events = walk_alone(plans[r], *rank.map, life);
    }
  }

  RanksTimes run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t r = 0; r < ranks_.size(); ++r)
        while (advance(r)) moved = true;
      for (auto& [lane, ends] : lanes_)
        while (meet(lane, ends)) moved = true;
      while (some_meet()) moved = true;
      if (all_meet()) moved = true;
    }
    for (const auto& rank : ranks_)
      if (rank.at < rank.events.size())
        throw Error("simulate_ranks: a message of the ranks' programs has no matching send or receive", ErrorKind::failed);
    RanksTimes times;
    for (std::size_t s = 0; s < steps_; ++s) times.step_s.push_back(step_end(s) - (s == 0 ? filled_ : step_end(s - 1)));
    for (auto& rank : ranks_) times.ranks.push_back(std::move(rank.times));
    return times;
  }

 private:
  struct Rank {
    std::unique_ptr<StepMap> map;
    std::unique_ptr<walk::CostModel> costs;
    double results_s = 0;
    Trace* trace = nullptr;
    std::unique_ptr<walk::Simulator> simulator;
    std::vector<Event> events;
    std::size_t at = 0, under_way = 0;  // messages and joint actions that are begun and not yet timed
    std::deque<const Computation*> together;
    walk::SimulatedTimes times;  // of the current program
    std::vector<double> ends;    // [step]: its end
  };
  // Joint actions: those that several ranks of the pipeline do together during a step.
  static bool is_together(const Rank& rank, const Action& a) {
    return a.op == Op::verdict || (a.op == Op::reduce && rank.map->pipeline().replicas() > 1);
  }
  static bool takes_part(const Rank& rank, const Action& a) {
    return a.op == Op::verdict || rank.map->pipeline().holds(a.layer);
  }
  bool some_meet() {
    return std::ranges::any_of(ranks_,
                               [&](const Rank& rank) { return !rank.together.empty() && meet(rank.together.front()->action); });
  }
  // Times the next joint action: it starts when the last rank has reached it. Ranks reach joint actions in the same order.
  bool meet(Action action) {
    double start = 0, seconds = 0;
    for (const auto& rank : ranks_) {
      if (!takes_part(rank, action)) continue;
      if (rank.together.empty() || rank.together.front()->action != action) return false;
      const auto& c = *rank.together.front();
      if (!rank.simulator->knows(c.after)) return false;
      start = std::max(start, rank.simulator->ready(c.lane, c.after));
      seconds = std::max(seconds, rank.costs->seconds(action));
    }
    for (auto& rank : ranks_) {
      if (!takes_part(rank, action)) continue;
      rank.simulator->pass(action, rank.together.front()->lane, start, start + seconds);
      rank.together.pop_front();
      --rank.under_way;
    }
    return true;
  }

  using LaneKey = std::tuple<std::uint32_t, std::uint32_t, Payload>;  // source, destination
  struct Ends {
    std::deque<const Computation*> sends, receives;
  };

  bool advance(std::uint32_t r) {
    auto& rank = ranks_[r];
    if (rank.at == rank.events.size()) return false;
    const auto& event = rank.events[rank.at];
    if (std::holds_alternative<Meeting>(event)) return false;
    if (std::holds_alternative<StepEnd>(event)) {
      rank.ends.push_back(rank.simulator->computed());
      if (rank.ends.size() < steps_) rank.simulator->finish_step(rank.ends.back());
      if (rank.trace && rank.ends.size() + 1 == steps_)
        rank.trace->forget_before(static_cast<std::int64_t>(rank.simulator->step_began() * 1e9) + 1);
    } else if (const auto* const move = std::get_if<Move>(&event)) {
      if (!rank.simulator->knows(move->after)) return false;
      rank.simulator->move(*move);
    } else {
      const auto& c = std::get<Computation>(event);
      if (is_message(c.lane)) {
        const bool sends = c.action.op == Op::send;
        auto& ends = lanes_[sends ? LaneKey{r, c.action.peer, c.action.payload} : LaneKey{c.action.peer, r, c.action.payload}];
        (sends ? ends.sends : ends.receives).push_back(&c);
        ++rank.under_way;
      } else if (is_together(rank, c.action)) {
        rank.together.push_back(&c);
        ++rank.under_way;
      } else {
        if (!rank.simulator->knows(c.after)) return false;
        rank.simulator->compute(c.action, {}, {{}, c.after}, c.lane, 0);
      }
    }
    ++rank.at;
    return true;
  }

  // Times the next message of a lane, once both of its ends are known.
  bool meet(const LaneKey& lane, Ends& ends) {
    if (ends.sends.empty() || ends.receives.empty()) return false;
    auto &source = ranks_[std::get<0>(lane)], &destination = ranks_[std::get<1>(lane)];
    const auto &send = *ends.sends.front(), &receive = *ends.receives.front();
    if (!source.simulator->knows(send.after) || !destination.simulator->knows(receive.after)) return false;
    const double start =
        std::max(source.simulator->ready(send.lane, send.after), destination.simulator->ready(receive.lane, receive.after));
    const double end = start + source.costs->seconds(send.action);
    source.simulator->pass(send.action, send.lane, start, end);
    destination.simulator->pass(receive.action, receive.lane, start, end);
    --source.under_way;
    --destination.under_way;
    ends.sends.pop_front();
    ends.receives.pop_front();
    return true;
  }

  bool all_meet() {
    double last = 0;
    for (const auto& rank : ranks_) {
      const bool here = rank.at < rank.events.size() && std::holds_alternative<Meeting>(rank.events[rank.at]);
      if (!here || rank.under_way != 0) return false;
      last = std::max(last, rank.simulator->computed() + rank.results_s);
    }
    for (auto& rank : ranks_) {
      rank.times = rank.simulator->finish_step(last);
      ++rank.at;
    }
    if (!met_) filled_ = last;
    met_ = true;
    return true;
  }

  [[nodiscard]] double step_end(std::size_t step) const {
    double last = 0;
    for (const auto& rank : ranks_) last = std::max(last, rank.ends[step]);
    return last;
  }

  const std::size_t steps_;
  std::vector<Rank> ranks_;
  std::map<LaneKey, Ends> lanes_;
  bool met_ = false;
  double filled_ = 0;
};

}  // namespace

double RanksTimes::bubble() const {
  double busy = 0;
  for (const auto& rank : ranks) busy += rank.compute_seconds;
  return 1 - busy / (step_s.back() * static_cast<double>(ranks.size()));
}

RanksTimes simulate_ranks(std::span<const Plan> plans, const Model& model, const CostsOf& costs_of,
                          const MachineProfile& profile, const RanksLife& life) {
  return Ranks(plans, model, costs_of, profile, life).run();
}

}  // namespace terrace::planning
