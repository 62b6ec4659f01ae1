#include <terrace/parallel/plan/stage_costs.h>

#include <algorithm>
#include <deque>
#include <limits>

#include <terrace/parallel/program/orders.h>
#include <terrace/parallel/walk/simulator.h>

namespace terrace::pipeline {
namespace {

// Costs of each layer; the last layer's forward is a part of its backward.
struct Seconds {
  std::vector<double> forward, backward;
  std::vector<std::uint64_t> input_bytes;  // of a micro-batch
};

Seconds seconds_of(const Model& model, StepMap::Options options, const MachineProfile& profile) {
  options.pipeline = {};  // all layers
  options.mesh.pp = 1;
  options.rank = model.place.tensor().rank;
  options.shape.micro_batches = 1;
  const StepMap map(model, options);
  const walk::ProfileCosts costs(map, profile);
  const auto of_call = [&](Op op, std::uint32_t layer) {
    double seconds = 0;
    for (const auto phase : map.phases().numbers(op, layer))
      seconds += costs.seconds({.op = op, .layer = layer, .phase = phase});
    return seconds;
  };
  Seconds s;
  for (std::uint32_t l = 0; l < map.layers(); ++l) {
    s.forward.push_back(l + 1 == map.layers() ? 0 : of_call(Op::forward, l));
    s.backward.push_back(of_call(Op::backward, l));
    s.input_bytes.push_back(map.chunks()[map.buffers().x(l, 0)].bytes);
  }
  return s;
}

// The slowest message between neighbouring stages. On one machine, a message is a copy in memory, whose time is negligible.
double message_of(const Pipeline& p, const std::vector<std::uint64_t>& input_bytes, std::uint32_t at_once,
                  const machine::Links& links) {
  double slowest = 0;
  if (links.within == 0) return slowest;
  for (const auto& rank_of : p.schedule.placement.rank_of)
    for (std::uint32_t s = 1; s < rank_of.size(); ++s)
      if (rank_of[s - 1] != rank_of[s] && p.begins[s] < p.layers())
        slowest = std::max(slowest,
                           mapping::seconds_of_message(links, at_once, rank_of[s - 1], rank_of[s], input_bytes[p.begins[s]]));
  return slowest;
}

// The reductions of a stage's gradient after a round, between its data ranks and between the ranks of both directions.
class Reductions {
 public:
  Reductions(const Pipeline& p, const Model& model, const StepMap::Options& options, const MachineProfile& profile)
      : p_(p), replicas_(static_cast<std::uint32_t>(p.schedule.placement.rank_of.size())), profile_(profile) {
    // Only a reduction between two directions depends on the stage, so only then each rank needs a map.
    const auto pipeline = replicas_ > 1 ? placement_of(p) : mesh::PipelineParallel{};
    for (std::uint32_t rank = 0; rank < pipeline.ranks; ++rank)
      maps_.emplace_back(model, of_rounds(options, pipeline, rank, model));
  }

  [[nodiscard]] bool any() const { return maps_.front().data().reduces() || replicas_ > 1; }
  [[nodiscard]] bool each_round() const { return maps_.front().data().folds_each(); }
  // `computed`: the time of each layer's gradient within the task. Between two directions, the reduction starts only after all
  // of them.
  [[nodiscard]] std::vector<ReductionCost> costs(bool last, const std::vector<double>& computed) const {
    std::vector<ReductionCost> all;
    const auto micro_batch = (last ? kRounds : 1) * replicas_ - 1;
    for (std::uint32_t s = 0; s < p_.schedule.placement.stages; ++s) {
      const auto& map = maps_[replicas_ > 1 ? p_.schedule.placement.rank_of.front()[s] : 0];
      const walk::ProfileCosts costs(map, profile_);
      double seconds = 0, task = 0, reduced = 0;  // clocks of the backward and of the reductions
      for (auto l = p_.begins[s + 1]; l-- > p_.begins[s];) {
        const double one = map.reduced_groups(l) * costs.seconds({.op = Op::reduce, .layer = l, .micro_batch = micro_batch});
        task += computed[l];
        reduced = std::max(reduced, task) + one;
        seconds += one;
      }
      all.push_back({seconds, replicas_ > 1 ? seconds : reduced - task});
    }
    return all;
  }

 private:
  static constexpr std::uint32_t kRounds = 2;  // one round begins a sum, one ends it
  static StepMap::Options of_rounds(StepMap::Options options, const mesh::PipelineParallel& pipeline, std::uint32_t rank,
                                    const Model& model) {
    options.pipeline = pipeline;
    options.mesh.pp = pipeline.ranks;
    options.rank = options.mesh.at(model.place.tensor().rank, Axis::pp, rank);
    options.pipeline.update_every = 0;
    options.pipeline.halves = false;
    options.shape.micro_batches = kRounds * options.pipeline.replicas();
    return options;
  }
  const Pipeline& p_;
  const std::uint32_t replicas_;
  const MachineProfile& profile_;
  std::deque<StepMap> maps_;  // one, or one for each rank
};

}  // namespace

std::vector<double> layer_costs(const Model& model, const StepMap::Options& options, const MachineProfile& profile) {
  auto of = seconds_of(model, options, profile);
  std::ranges::transform(of.forward, of.backward, of.forward.begin(), std::plus<>());
  return of.forward;
}

StageCosts stage_costs(const Pipeline& p, const Model& model, const StepMap::Options& options, const MachineProfile& profile) {
  const auto [forward, backward, input_bytes] = seconds_of(model, options, profile);
  auto mesh = options.mesh;
  mesh.pp = p.schedule.placement.ranks;
  const auto neighbours = mesh.stride(Axis::pp);
  StageCosts costs{.forward = {}, .input = {}, .weight = {}, .message = message_of(p, input_bytes, neighbours, profile.links)};
  const bool halves = placement_of(p).halves;
  std::vector<double> gradients;  // of each layer, within the task that computes it
  for (std::uint32_t s = 0; s < p.schedule.placement.stages; ++s) {
    double f = 0, input = 0, weight = 0;
    for (auto l = p.begins[s]; l < p.begins[s + 1]; ++l) {
      f += forward[l];
      // The two halves cost the same. The whole backwards of the last and the first layer count where step_of() places them.
      const double share = l + 1 == p.layers() ? 1 : l == 0 ? 0 : 0.5;
      input += share * backward[l];
      weight += (1 - share) * backward[l];
      gradients.push_back((halves ? 1 - share : 1) * backward[l]);
    }
    costs.forward.push_back(f);
    costs.input.push_back(input);
    costs.weight.push_back(weight);
  }
  const Reductions reductions(p, model, options, profile);
  if (reductions.any()) costs.last_reduction = reductions.costs(true, gradients);
  if (reductions.any() && reductions.each_round()) costs.reduction = reductions.costs(false, gradients);
  return costs;
}

double shortest_step(const Schedule& schedule, const StageCosts& costs) {
  const auto& replicas = schedule.placement.rank_of;
  const double never = std::numeric_limits<double>::infinity();
  std::vector<double> begins(schedule.placement.ranks, never), busy(schedule.placement.ranks, 0);
  const double micro_batches = static_cast<double>(schedule.micro_batches) / static_cast<double>(replicas.size());
  for (const auto& holders : replicas) {
    double now = 0;
    for (std::uint32_t s = 0; s < schedule.placement.stages; ++s) {
      const auto rank = holders[s];
      begins[rank] = std::min(begins[rank], now);
      now += costs.of({Work::forward, s, 0});
      busy[rank] += micro_batches * (costs.of({Work::forward, s, 0}) + costs.of({Work::backward, s, 0}));
    }
  }
  double shortest = 0;
  for (std::size_t r = 0; r < begins.size(); ++r)
    if (begins[r] != never) shortest = std::max(shortest, begins[r] + busy[r]);
  return shortest;
}

}  // namespace terrace::pipeline
