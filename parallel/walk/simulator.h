// Times a program on a machine: the executor's walk with virtual clocks in place of streams and disks.
//
// A lane runs one operation after another; an operation starts when its lane is free and its clock has been reached. If a
// compute operation waits, this is a stall, caused by the lane for which it waited last; waiting for an upload that itself
// waited for a read counts as a read stall. If copies and disk transfers share cores with the computing, computing slows down
// while they run, by the factors measured in the machine profile. Likewise a disk read and a disk write slow each other down.
//
// Pure. Owner: the planner. Threads: one at a time; it starts none.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include <terrace/core/base/trace.h>
#include <terrace/core/machine/machine.h>
#include <terrace/memory/residency.h>
#include <terrace/parallel/map/exchange.h>
#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/program/early_updates.h>
#include <terrace/parallel/program/program.h>
#include <terrace/parallel/walk/overlap.h>
#include <terrace/parallel/walk/walk.h>

namespace terrace::walk {

// Seconds of one action on its lane, when nothing else runs.
class CostModel {
 public:
  virtual ~CostModel() = default;
  [[nodiscard]] virtual double seconds(const Action& action) const = 0;
  [[nodiscard]] virtual double seconds_of_results(const Program&) const { return 0; }  // to share losses and squares
  [[nodiscard]] virtual double seconds_of_average() const { return 0; }                // for the sums of a weight average
};
// From the layers' matrix FLOPs and the profile's rates; updates, norms and fills from bytes ÷ memory bandwidth.
class ProfileCosts : public CostModel {
 public:
  ProfileCosts(const StepMap& map, const MachineProfile& profile) : map_(map), profile_(profile) {}
  [[nodiscard]] double seconds(const Action& action) const override;
  [[nodiscard]] double seconds_of_results(const Program& step) const override {
    return seconds_of(mapping::results_of(map_, step));
  }
  [[nodiscard]] double seconds_of_average() const override { return seconds_of(mapping::average_of(map_)); }
  // A measured cost replaces the estimate for all actions of the same operation, layer and phase, separately for the first
  // micro-batch and the later ones.
  void set(const Action& action, double seconds) { measured_[key(action)] = seconds; }

 private:
  [[nodiscard]] machine::Links links() const;
  [[nodiscard]] double seconds_of(const std::vector<mapping::Exchange>& exchanges) const;
  const StepMap& map_;
  const MachineProfile& profile_;
  // The first micro-batch writes gradients, later ones add to them.
  using Key = std::tuple<Op, std::uint32_t, std::uint32_t, bool>;
  static Key key(const Action& a) { return {a.op, a.layer, a.phase, a.micro_batch != 0}; }
  std::map<Key, double> measured_;
};

struct SimulatedTimes {
  double seconds = 0;                     // since the last finish_step()
  double compute_seconds = 0;             // the compute lane's own work
  std::map<std::string, double> stall_s;  // by cause: "read", "upload", "write", "download"
  // Parts of the stalls: before the step's first action on the compute lane, and after its last one.
  double begin_s = 0, end_s = 0;
  std::array<double, kLanes> busy_s{};
  Communicated communicated = {};
  void add(const SimulatedTimes& other);
  void divide(double by);
};

class Simulator : public Sink {
 public:
  Simulator(const CostModel& costs, const MachineProfile& profile, Trace* trace = nullptr,
            std::function<std::string(ChunkId)> label = {})
      : costs_(costs), profile_(profile), trace_(trace), label_(std::move(label)) {}
  void move(const Move& move) override;
  void compute(const Action& action, std::span<const Use> uses, const memory::Residency::Granted& granted, Lane lane,
               std::uint64_t sequence) override;
  bool leaves_out(const Action& action) override { return early_.leaves_out(action); }
  void set_early(const EarlyUpdates& early) { early_ = early; }    // of the programs from now on
  [[nodiscard]] double step_began() const { return step_begin_; }  // on the simulated clock, seconds
  [[nodiscard]] double computed() const;                           // the time at which all actions so far have ended
  // Finishes everything decided so far; returns the times since the last call. A step ends when its compute lane does. The next
  // step does not begin before `not_before`, the time at which the other ranks end their steps.
  SimulatedTimes finish_step(double not_before = 0);
  // Finishes everything decided so far, including disk writes, as a commit does; returns the seconds since the last step's end.
  double finish_writes();

  // For ranks that are timed together (ranks_simulator.h). knows(): whether all operations of the clock have been timed.
  // ready(): the earliest start of an operation of the lane. pass(): adds an operation shared with another rank, with the given
  // times.
  [[nodiscard]] bool knows(const Clock& clock) const;
  [[nodiscard]] double ready(Lane lane, const Clock& after) const;
  void pass(const Action& action, Lane lane, double start, double end);

 private:
  struct Done {
    double start = 0, end = 0;  // on its lane; waiters of a disk transfer also wait for the disk's latency
    Lane waited_for = Lane::compute;
  };
  double when(const Clock& clock, Lane* last) const;  // the time at which all of it is done, and the last lane
  const Done& done(Lane lane, std::uint64_t sequence) const;
  // The end of an operation of `self` that starts at `start` and would take `seconds` alone; other lanes slow it down.
  double ends(Lane self, double start, double seconds);
  // The share of its speed that an operation of `self` keeps while one of `other` runs.
  [[nodiscard]] double share(Lane self, Lane other) const;
  [[nodiscard]] double bytes_per_second(Lane lane) const;
  double cost_of(const Action& action);
  struct HashOfAction {
    std::size_t operator()(const Action& action) const;
  };
  const CostModel& costs_;
  std::unordered_map<Action, double, HashOfAction> known_costs_;  // the steps of a life repeat their actions
  const MachineProfile& profile_;
  Trace* trace_;
  std::function<std::string(ChunkId)> label_;
  std::array<std::vector<Done>, kLanes> done_;  // by sequence − 1
  // [self][other]: how many of other's operations ended before self's current one
  std::array<std::array<std::size_t, kLanes>, kLanes> passed_{};
  double step_begin_ = 0, not_before_ = 0;
  EarlyUpdates early_;
  bool computes_ = false;  // the step has had an action on the compute lane
  SimulatedTimes times_;
  OverlapMeter overlap_;
};

}  // namespace terrace::walk
