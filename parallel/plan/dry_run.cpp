#include <terrace/parallel/plan/dry_run.h>

#include <algorithm>
#include <string>
#include <utility>

#include <terrace/core/base/units.h>
#include <terrace/parallel/walk/walk.h>

namespace terrace::planning {
namespace {

// Most lives are only compared, so fewer steps are walked if a step has very many actions.
constexpr std::uint64_t kTriedActions = 40'000;

memory::Traffic difference(const memory::Traffic& a, const memory::Traffic& b) {
  return {a.upload - b.upload,   a.download - b.download,   a.read - b.read,   a.write - b.write,
          a.uploads - b.uploads, a.downloads - b.downloads, a.reads - b.reads, a.writes - b.writes};
}

// One life, walked and timed.
class LifeWalk {
 public:
  LifeWalk(const StepMap& map, const PlanRequest& request, const Programs& programs, const Budget& capacity,
           std::uint32_t generations, const walk::CostModel& costs, const MachineProfile& profile, const Life& life)
      : map_(map),
        request_(request),
        programs_(programs),
        costs_(costs),
        life_(life),
        further_rounds_(life.most_steps),
        residency_(capacity, policy_, generations),
        walk_(map, residency_, policy_),
        simulator_(costs, profile, life.trace, [&map](ChunkId chunk) { return map.describe(chunk); }) {
    map.chunks().add_to(residency_);
    for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
      if (map.committed(ChunkId(c))) residency_.reserve_on_disk(ChunkId(c));
    if (life_.most_steps == 0) life_.most_steps = std::clamp(kTriedActions / actions_of(programs), kFewestSteps, kWalkedSteps);
  }

  // Walks generation position by position, or evaluation micro-batch by micro-batch.
  DryRun read() {
    if (request_.weights_given)
      run(programs_.fill);
    else
      adopt_on_disk([&](ChunkId c) { return map_.chunks()[c].kind == ChunkKind::parameter; });
    const auto& program = request_.evaluates_only ? programs_.evaluate : programs_.decode;
    const auto most = request_.evaluates_only ? kWalkedSteps : static_cast<std::uint64_t>(request_.decode_positions);
    for (std::uint64_t i = 0; i < std::min(life_.most_steps, most); ++i) {
      simulator_.finish_step();
      out_.steps.push_back(moved_by([&] { run(program); }));
      out_.times = simulator_.finish_step();
    }
    note_space();
    return std::move(out_);
  }

  DryRun train() {
    results_s_ = costs_.seconds_of_results(programs_.steady);
    begin();
    if (request_.evaluate_first && !life_.steps_only) evaluate();
    steps();
    note_space();
    if (life_.steps_only) return std::move(out_);
    restore();
    evaluate();
    commit();
    for (std::uint64_t i = 0; i < request_.visits; ++i) run(programs_.visit);
    note_space();
    time_commit_beside();
    return std::move(out_);
  }

 private:
  void run(const Program& program) {
    if (request_.abandons && request_.abandons()) throw Abandoned();
    walk_.run(program, simulator_);
  }

  template <class Run>
  memory::Traffic moved_by(const Run& some) {
    const auto before = residency_.traffic();
    some();
    return difference(residency_.traffic(), before);
  }

  template <class Predicate>
  void adopt_on_disk(const Predicate& is_there) {
    for (std::uint32_t c = 0; c < map_.chunks().size(); ++c)
      if (is_there(ChunkId(c))) residency_.adopt_on_disk(ChunkId(c));
  }

  void note_space() {
    for (const auto tier : kAllTiers) {
      out_.peak[tier] = residency_.space(tier).peak_bytes();
      out_.extent[tier] = residency_.space(tier).extent_bytes();
    }
  }

  void begin() {
    if (!life_.resumed) return run(programs_.fill);
    adopt_on_disk([&](ChunkId c) { return map_.committed(c); });
    run(programs_.gather);
  }

  void steps() {
    const auto due = [](std::uint64_t step, std::uint64_t every) { return every != 0 && step % every == 0; };
    const auto last = request_.steps == 0 ? life_.most_steps : std::min(request_.steps, life_.most_steps);
    bool averaged = false;
    for (std::uint64_t s = 1; s <= last; ++s) {
      step(s);
      if (due(s, request_.average_every)) {
        average();
        averaged = true;
      }
      if (due(s, request_.evaluate_every) && s != last) evaluate();
      if (due(s, request_.commit_every) && s != last) commit();
    }
    out_.times.divide(static_cast<double>(std::max<std::uint64_t>(1, counted_)));
    if (request_.average_every == 0) return;
    if (!averaged) average();  // if no average was walked yet
    auto part = out_.average;
    part.divide(static_cast<double>(request_.average_every));
    out_.times.add(part);
  }

  void step(std::uint64_t number) {
    const bool whole = !programs_.leaves_pending() || pending_;  // a step with an update
    // Lives that are compared count the same steps, so there the first step updates early, too.
    const auto early = begin_early(early_, number > 1 || life_.steps_only);
    simulator_.finish_step();
    if (life_.trace) life_.trace->forget_before(static_cast<std::int64_t>(simulator_.step_began() * 1e9));
    out_.steps.push_back(moved_by([&] { run(whole ? programs_.steady : programs_.first); }));
    pending_ = programs_.leaves_pending();
    auto times = simulator_.finish_step();
    if (results_s_ > 0) {
      times.seconds += results_s_;
      times.stall_s[std::string(name_of(Lane::communication))] += results_s_;
      times.end_s += results_s_;
    }
    count(times, whole && number > 1 && (map_.options().early.empty() || early == EarlyUpdates::Pending::held));
  }

  // The next step applies early updates in this way, and makes new ones if it `begins`. Returns the way.
  EarlyUpdates::Pending begin_early(EarlyUpdates::Pending way, bool begins) {
    simulator_.set_early({map_.options().early, way, begins});
    early_ = begins && !map_.options().early.empty() ? EarlyUpdates::Pending::held : EarlyUpdates::Pending::none;
    return way;
  }

  // A step after one that clipped takes the early updates back and makes none; the one after it does.
  void restore() {
    if (early_ != EarlyUpdates::Pending::held) return;
    begin_early(EarlyUpdates::Pending::restored, false);
    run(programs_.steady);
    out_.restoring_seconds = simulator_.finish_step().seconds;
    begin_early(EarlyUpdates::Pending::none, true);
    run(programs_.steady);
    note_space();
  }

  // Averages the cost of a step in the long run: once a steady step has come, the steps before it do not count.
  void count(const walk::SimulatedTimes& times, bool steady) {
    if (steady && !std::exchange(met_steady_, true)) {
      out_.times = {};
      counted_ = 0;
    }
    out_.times.add(times);
    ++counted_;
  }

  void drain() {
    begin_early(early_, false);
    if (pending_) run(programs_.drain);
    pending_ = false;
  }

  void evaluate() {
    if (request_.evaluate_batches == 0) return;
    drain();
    const auto at_once = std::uint64_t{request_.mesh.size(kBatchAxes)} * programs_.evaluate.micro_batches;
    const auto rounds = ceil_div(request_.evaluate_batches, at_once);
    // Evaluation rounds repeat like steps, but places may still change after many of them. So a whole life walks some more
    // rounds, shared by all of its evaluations.
    const auto few = std::min(rounds, kWalkedSteps), more = std::min(rounds - few, further_rounds_);
    further_rounds_ -= more;
    for (std::uint64_t i = 0; i < few + more; ++i) run(programs_.evaluate);
  }

  void commit() {
    simulator_.finish_step();
    out_.commit = moved_by([&] {
      drain();
      walk_.flush(simulator_);
    });
    out_.commit_seconds = simulator_.finish_writes();
  }

  // The time of a commit written beside the next step, less the time of a step alone. Runs last, because it changes places and
  // counts of bytes.
  void time_commit_beside() try {
    out_.commit_added_seconds = out_.commit_seconds;
    if (!request_.commits_beside || !programs_.updates_before_use) return;
    begin_early(EarlyUpdates::Pending::none, false);
    run(programs_.first);
    run(programs_.steady);
    simulator_.finish_writes();
    run(programs_.drain);
    walk_.flush(simulator_);
    run(programs_.first);
    out_.commit_added_seconds = std::max(0.0, simulator_.finish_writes() + results_s_ - out_.times.seconds);
  } catch (const memory::DoesNotFit&) {  // the life's memory does not allow a longer walk
  }

  // Includes the pending update: the next step begins without one.
  void average() {
    simulator_.finish_step();
    out_.average_traffic = moved_by([&] {
      drain();
      run(programs_.average);
    });
    out_.average = simulator_.finish_step();
    // A chunk's fill waits for the sum that follows its visit, so the sums are added as a stall.
    const double seconds = costs_.seconds_of_average();
    out_.average.seconds += seconds;
    out_.average.stall_s[std::string(name_of(Lane::communication))] += seconds;
    out_.average.communicated.seconds += seconds;
  }

  const StepMap& map_;
  const PlanRequest& request_;
  const Programs& programs_;
  const walk::CostModel& costs_;
  Life life_;
  std::uint64_t further_rounds_;  // rounds of evaluations that may still be walked
  memory::Belady policy_;
  memory::Residency residency_;
  walk::Walk walk_;
  walk::Simulator simulator_;
  double results_s_ = 0;  // to share the results of a step, before its verdict
  bool pending_ = false;  // an update is pending
  EarlyUpdates::Pending early_ = EarlyUpdates::Pending::none;
  bool met_steady_ = false;
  std::uint64_t counted_ = 0;  // steps in out_.times
  DryRun out_;
};

}  // namespace

std::uint64_t actions_of(const Programs& programs) {
  const auto of_step = programs.steady.actions.size() + programs.decode.actions.size();
  return std::max<std::uint64_t>(1, of_step != 0 ? of_step : programs.evaluate.actions.size());
}

DryRun dry_run(const StepMap& map, const PlanRequest& request, const Programs& programs, const Budget& capacity,
               std::uint32_t generations, const walk::CostModel& costs, const MachineProfile& profile, const Life& life) {
  LifeWalk walk(map, request, programs, capacity, generations, costs, profile, life);
  return request.trains() ? walk.train() : walk.read();
}

}  // namespace terrace::planning
