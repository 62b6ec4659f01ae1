#include <terrace/parallel/dry_run.h>

#include <algorithm>
#include <string>
#include <utility>

#include <terrace/core/units.h>
#include <terrace/parallel/walk.h>

namespace terrace {
namespace {

// Most lives are only compared, so fewer steps are walked if a step has very many actions.
constexpr std::uint64_t kTriedActions = 40'000;

Traffic difference(const Traffic& a, const Traffic& b) {
  return {a.upload - b.upload,   a.download - b.download,   a.read - b.read,   a.write - b.write,
          a.uploads - b.uploads, a.downloads - b.downloads, a.reads - b.reads, a.writes - b.writes};
}

}  // namespace

std::uint64_t actions_of(const Programs& programs) {
  return std::max<std::uint64_t>(1, programs.steady.actions.size() + programs.decode.actions.size());
}

DryRun dry_run(const StepMap& map, const PlanRequest& request, const Programs& programs, const Budget& capacity,
               std::uint32_t generations, const CostModel& costs, const MachineProfile& profile, const Life& life) {
  auto [most_steps, trace, steps_only, resumed] = life;
  if (most_steps == 0) most_steps = std::clamp(kTriedActions / actions_of(programs), kFewestSteps, kWalkedSteps);
  Belady policy;
  Residency residency(capacity, policy, generations);
  map.chunks().add_to(residency);
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
    if (map.committed(ChunkId(c))) residency.reserve_on_disk(ChunkId(c));
  Walk walk(map, residency, policy);
  Simulator simulator(costs, profile, trace, [&](ChunkId chunk) { return map.describe(chunk); });
  DryRun out;

  const auto note_space = [&] {
    for (const auto tier : kAllTiers) {
      out.peak[tier] = residency.space(tier).peak_bytes();
      out.extent[tier] = residency.space(tier).extent_bytes();
    }
  };
  if (request.decode_positions != 0) {
    if (request.weights_given) {
      walk.run(programs.fill, simulator);
    } else {
      for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
        if (map.chunks()[ChunkId{c}].kind == Kind::parameter) residency.adopt_on_disk(ChunkId{c});
    }
    const auto positions = std::min(most_steps, static_cast<std::uint64_t>(request.decode_positions));
    for (std::uint64_t i = 0; i < positions; ++i) {
      const auto before = residency.traffic();
      simulator.finish_step();
      walk.run(programs.decode, simulator);
      out.times = simulator.finish_step();
      out.steps.push_back(difference(residency.traffic(), before));
    }
    note_space();
    return out;
  }
  const bool before_use = programs.updates_before_use;
  // The results of the step are shared before its verdict.
  const double results_s = costs.seconds_of_results(programs.steady);
  bool pending = false;
  const auto drain = [&] {
    if (pending) walk.run(programs.drain, simulator);
    pending = false;
  };
  const auto evaluate = [&] {
    if (request.evaluate_batches == 0) return;
    drain();
    const auto rounds = ceil_div(request.evaluate_batches, std::uint64_t{request.data.ranks} * programs.evaluate.micro_batches);
    for (std::uint64_t i = 0; i < std::min(rounds, kWalkedSteps); ++i)  // they repeat, too
      walk.run(programs.evaluate, simulator);
  };
  const auto commit = [&] {
    simulator.finish_step();
    const auto before = residency.traffic();
    drain();
    walk.flush(simulator);
    out.commit = difference(residency.traffic(), before);
    out.commit_seconds = simulator.finish_writes();
  };
  // Includes the pending update: the next step begins without one.
  const auto average = [&] {
    simulator.finish_step();
    const auto before = residency.traffic();
    drain();
    walk.run(programs.average, simulator);
    out.average = simulator.finish_step();
    out.average_traffic = difference(residency.traffic(), before);
    // A chunk's sum is waited for between its visit and its fill.
    const double seconds = costs.seconds_of_average();
    out.average.seconds += seconds;
    out.average.stall_s[std::string(name_of(Lane::communication))] += seconds;
    out.average.communicated.seconds += seconds;
  };
  const auto due = [](std::uint64_t step, std::uint64_t every) { return every != 0 && step % every == 0; };

  if (resumed) {
    for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
      if (map.committed(ChunkId(c))) residency.adopt_on_disk(ChunkId(c));
    walk.run(programs.gather, simulator);
  } else {
    walk.run(programs.fill, simulator);
  }
  std::uint64_t counted = 0;
  bool met_steady = false, averaged = false;
  const auto steps = request.steps == 0 ? most_steps : std::min(request.steps, most_steps);
  for (std::uint64_t s = 1; s <= steps; ++s) {
    const bool steady = s > 1 && (!before_use || pending);
    simulator.finish_step();
    if (trace) trace->forget_before(static_cast<std::int64_t>(simulator.step_began() * 1e9));
    const auto before = residency.traffic();
    walk.run(!before_use || pending ? programs.steady : programs.first, simulator);
    pending = before_use;
    out.steps.push_back(difference(residency.traffic(), before));
    // The cost of a step in the long run; a short life has only its first steps.
    auto times = simulator.finish_step();
    times.seconds += results_s;
    if (results_s > 0) times.stall_s[std::string(name_of(Lane::communication))] += results_s;
    if (steady && !std::exchange(met_steady, true)) {
      out.times = {};
      counted = 0;
    }
    out.times.add(times);
    ++counted;
    if (due(s, request.average_every)) {
      average();
      averaged = true;
    }
    if (due(s, request.evaluate_every) && s != steps) evaluate();
    if (due(s, request.commit_every) && s != steps) commit();
  }
  out.times.divide(static_cast<double>(std::max<std::uint64_t>(1, counted)));
  if (request.average_every != 0) {
    if (!averaged) average();  // if no walked step was followed by one
    auto part = out.average;
    part.divide(static_cast<double>(request.average_every));
    out.times.add(part);
  }
  note_space();
  if (steps_only) return out;
  evaluate();
  commit();
  for (std::uint64_t i = 0; i < request.visits; ++i) walk.run(programs.visit, simulator);
  note_space();
  return out;
}

}  // namespace terrace
