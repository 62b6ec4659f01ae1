#include <terrace/parallel/plan/search/estimate.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/plan/search/layer_estimates.h>
#include <terrace/parallel/plan/stage_costs.h>

namespace terrace::planning {
namespace {

constexpr double kNever = 1e30;

double of(std::uint64_t bytes) { return bytes == kUnlimited ? kNever : static_cast<double>(bytes); }

// The layers of a rank, added up, and what they do in a step.
struct Work {
  std::vector<LayerEstimate> layers;
  double window = 0, largest_action = 0;
  double micro_batches = 1;
  double live = 1;      // micro-batches whose activations are kept at once
  double together = 1;  // micro-batches that compute a layer before its weights are released
  bool recomputes = false, updates_on_device = false;
};

// The hops of a ring run beside the computing; computing waits for other exchanges.
double with_exchange(double computing, double exchange, bool ring) {
  return ring ? std::max(computing, exchange) : computing + exchange;
}

struct Passes {
  double forward = 0, backward = 0;  // seconds of a micro-batch, with the exchanges that it waits for
};

// A layer's gathers and reductions run beside the computing of its neighbours. Gathers are shared by the micro-batches that
// compute a layer together.
Passes passes_of(const Work& work, bool ring) {
  Passes all;
  for (std::size_t l = 0; l < work.layers.size(); ++l) {
    const auto& layer = work.layers[l];
    const double forward = with_exchange(layer.forward, layer.forward_exchange, ring);
    double backward = with_exchange(layer.backward, layer.backward_exchange, ring);
    if (work.recomputes && layer.saved > 0) backward += forward;
    const double gather = layer.gather / 2 / work.together;
    all.forward += std::max(forward, gather);
    all.backward += std::max(backward, gather + layer.reduction);
  }
  return all;
}

LayerEstimate sum_of(const Work& work) {
  LayerEstimate sum;
  for (const auto& layer : work.layers) sum += layer;
  return sum;
}

// The bytes that move in a step because the device cannot hold them.
struct Moves {
  double up = 0, down = 0, host = 0;  // bytes; host: those that the host keeps
};

Moves moves_of(const Work& work, const LayerEstimate& sum, double device) {
  Moves moves;
  const double kept = sum.input + (work.recomputes ? 0 : sum.saved), state = sum.weights + sum.gradients;
  double excess = state + work.live * kept + work.largest_action + 2 * work.window - device;
  if (work.updates_on_device) {
    excess += sum.states;
  } else {
    moves = {.up = sum.weights, .down = sum.gradients, .host = sum.states + sum.weights};
  }
  const double activations = std::clamp(excess, 0.0, work.live * kept);
  const double rounds = work.micro_batches / work.together;
  if (activations > 0) {
    const double each_step = activations / work.live * work.micro_batches;
    moves.up += each_step;
    moves.down += each_step;
    moves.host += activations;
  }
  excess -= activations;
  const double passed = std::clamp(excess, 0.0, state);  // it moves: weights twice a round, gradients down and up again
  moves.up += (2 * rounds - 1) * passed;
  moves.down += rounds * passed * (state == 0 ? 0 : sum.gradients / state);
  moves.host += passed;
  excess -= passed;
  if (work.updates_on_device && excess > 0) {
    moves.up += std::min(excess, sum.states);
    moves.down += std::min(excess, sum.states);
    moves.host += std::min(excess, sum.states);
  }
  return moves;
}

// Seconds of a step whose computing takes `computing_s`, with the moves and updates beside it; kNever if the tiers are too
// small. Updates on the host only run beside the first use of the weights, which takes `first_forward_s`.
double with_moves(const Work& work, double computing_s, double first_forward_s, const Budget& budget,
                  const MachineProfile& profile) {
  const auto sum = sum_of(work);
  const auto moves = moves_of(work, sum, of(budget.device));
  const double on_disk = std::max(0.0, moves.host - of(budget.host));
  if (on_disk > of(budget.disk)) return kNever;
  const bool gpu = profile.separate_device();
  const double up = moves.up / (gpu ? profile.upload : profile.memory_copy);
  const double down = moves.down / (gpu ? profile.download : profile.memory_copy);
  const double on_host = work.updates_on_device ? 0 : sum.update * (gpu ? profile.device_stream / profile.memory_stream : 1);
  computing_s += work.updates_on_device ? sum.update : gpu ? std::max(0.0, on_host - first_forward_s) : on_host;
  return std::max({computing_s + sum.norm, up, down, on_disk / profile.disk_read + on_disk / profile.disk_write});
}

// What data ranks exchange once a step, as far as it takes longer than the micro-batches beside it.
double behind(const LayerEstimate& sum, const Passes& passes, double together) {
  return std::max(0.0, sum.last_reduction - passes.backward * together) +
         std::max(0.0, sum.updated_gather - passes.forward * together);
}

class Estimator {
 public:
  Estimator(const SearchedRun& run, const Candidate& candidate, const MachineProfile& profile)
      : run_(run),
        candidate_(candidate),
        profile_(profile),
        all_(estimate_layers(run, candidate, profile)),
        budget_(run.request.budget) {
    if (!run.request.disk_tier) budget_.disk = 0;
  }

  Estimate run() {
    Estimate out = refusal();
    if (out.missing_bytes != 0) return out;
    candidate_.degrees.pp == 1 ? alone(out) : in_pipeline(out);
    return out;
  }

 private:
  [[nodiscard]] bool ring() const { return candidate_.place.ring > 1; }

  // Refuses if the largest action does not fit, or the average content of a rank, because some rank has at least that.
  [[nodiscard]] Estimate refusal() const {
    const auto lacks = [](Tier tier, double bytes) {
      return Estimate{.missing_bytes = static_cast<std::uint64_t>(std::ceil(bytes)), .tier = tier};
    };
    if (all_.largest_action > of(budget_.device)) return lacks(Tier::device, all_.largest_action - of(budget_.device));
    double content = 0;
    for (const auto& layer : all_.layers) content += layer.content;
    content /= static_cast<double>(candidate_.degrees.pp);
    const double room = of(budget_.device) + of(budget_.host) + of(budget_.disk);
    const auto lowest = budget_.disk == 0 ? Tier::host : Tier::disk;
    return content > room ? lacks(lowest, content - room) : Estimate{};
  }

  // The values of a setting to try. The fastest one counts, as in the planner.
  [[nodiscard]] std::vector<bool> recomputes() const {
    if (run_.request.recompute) return {*run_.request.recompute > 0};
    return candidate_.degrees.pp == 1 ? std::vector{false, true} : std::vector{false};
  }
  [[nodiscard]] std::vector<bool> places() const {
    if (run_.request.update == Tier::host) return {false};
    if (run_.request.update == Tier::device) return {true};
    return {true, false};
  }

  void alone(Estimate& out) const {
    const double m = candidate_.micro_batches;
    const auto order = run_.request.order;
    std::vector<double> groups;
    if (!order)
      for (double group = 1; group < m; group *= 2) groups.push_back(group);
    if (order != Order::horizontal) groups.push_back(order == Order::group_vertical ? run_.request.group : m);
    if (groups.empty()) groups.push_back(1);
    out.step_s = kNever;
    for (const bool recomputes : this->recomputes())
      for (const bool on_device : places())
        for (const double group : groups) {
          Work work{all_.layers, all_.window, all_.largest_action, m, group, group, recomputes, on_device};
          const auto passes = passes_of(work, ring());
          const double computing = m * (passes.forward + passes.backward) + behind(sum_of(work), passes, group);
          out.step_s = std::min(out.step_s, with_moves(work, computing, group * passes.forward, budget_, profile_));
        }
    for (const auto& layer : all_.layers) out.least_s += m * (layer.forward + layer.backward);
  }

  void in_pipeline(Estimate& out) const {
    const auto schedule = schedule_of(run_, candidate_);
    if (!schedule) {  // the schedule is chosen later: assumed to have no bubbles
      const auto passes = passes_of({all_.layers, 0, 0}, ring());
      out.step_s = candidate_.micro_batches * (passes.forward + passes.backward) / candidate_.degrees.pp;
      return;
    }
    out.step_s = kNever;
    for (const bool recomputes : this->recomputes()) out.step_s = std::min(out.step_s, of_schedule(*schedule, recomputes));
    if (schedule->asynchronous() || !run_.pipelines.balances) return;
    const auto begins = begins_of(*schedule);
    pipeline::StageCosts costs{.forward = {}, .input = {}, .weight = {}};
    for (std::uint32_t s = 0; s < schedule->placement.stages; ++s) {
      LayerEstimate sum;
      for (auto l = begins[s]; l < begins[s + 1]; ++l) sum += all_.layers[l];
      costs.forward.push_back(sum.forward);
      costs.input.push_back(sum.backward);
      costs.weight.push_back(0);
    }
    out.least_s = pipeline::shortest_step(*schedule, costs);
  }

  [[nodiscard]] std::vector<std::uint32_t> begins_of(const pipeline::Schedule& schedule) const {
    std::vector<double> costs;
    for (const auto& layer : all_.layers) costs.push_back(layer.forward + layer.backward);
    return pipeline::balance(costs, schedule.placement.stages);
  }

  // Simulates the schedule with each rank's stages and its number of live micro-batches; moves may make a rank slower.
  [[nodiscard]] double of_schedule(const pipeline::Schedule& schedule, bool recomputes) const {
    const auto begins = begins_of(schedule);
    const auto stages = schedule.placement.stages;
    pipeline::StageCosts costs{.forward = {}, .input = {}, .weight = {}};
    std::vector<Work> of_rank(schedule.placement.ranks);
    for (std::uint32_t s = 0; s < stages; ++s) {
      const std::vector<LayerEstimate> layers(all_.layers.begin() + begins[s], all_.layers.begin() + begins[s + 1]);
      const auto passes = passes_of({layers, 0, 0, 1, 1, 1, recomputes, false}, ring());
      costs.forward.push_back(passes.forward);
      costs.input.push_back(passes.backward / 2);
      costs.weight.push_back(passes.backward / 2);
      for (const auto& rank_of_stage : schedule.placement.rank_of) {
        auto& held = of_rank[rank_of_stage[s]].layers;
        held.insert(held.end(), layers.begin(), layers.end());
      }
    }
    const auto timing = pipeline::simulate(schedule, costs);
    const auto updates = schedule.asynchronous() ? schedule.micro_batches / schedule.update_every : 1;
    const double step = timing.makespan / updates;
    double slowest = 0;
    for (std::uint32_t r = 0; r < schedule.placement.ranks; ++r) {
      auto& work = of_rank[r];
      work.window = all_.window;
      work.largest_action = all_.largest_action;
      work.micro_batches = candidate_.micro_batches;
      work.live = static_cast<double>(timing.peak_live[r]) * schedule.placement.ranks / stages;
      work.live = std::max(1.0, work.live);
      work.recomputes = recomputes;
      const auto passes = passes_of(work, ring());
      const double after = behind(sum_of(work), passes, 1);
      double fastest = kNever;
      for (const bool on_device : places()) {
        work.updates_on_device = on_device;
        fastest = std::min(fastest, with_moves(work, step + after, passes.forward, budget_, profile_));
      }
      slowest = std::max(slowest, fastest);
    }
    return slowest;
  }

  const SearchedRun& run_;
  const Candidate& candidate_;
  const MachineProfile& profile_;
  LayerEstimates all_;
  Budget budget_;
};

}  // namespace

Estimate estimate_plan(const SearchedRun& run, const Candidate& candidate, const MachineProfile& profile) {
  return Estimator(run, candidate, profile).run();
}

}  // namespace terrace::planning
