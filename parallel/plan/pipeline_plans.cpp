#include <terrace/parallel/plan/pipeline_plans.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include <terrace/memory/residency.h>
#include <terrace/optimizers/recipe.h>
#include <terrace/parallel/passes/check_collectives.h>
#include <terrace/parallel/passes/check_messages.h>
#include <terrace/parallel/pipeline/search.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/plan/check_request.h>
#include <terrace/parallel/plan/ranks_simulator.h>
#include <terrace/parallel/plan/stage_costs.h>

namespace terrace::planning {
namespace {

StepMap::Options options_of(const PlanRequest& request, const Model& model) {
  return {.recipe = rules::Recipe::of(model.dtype, request.recipe, request.states),
          .shape = request.shape,
          .mesh = request.mesh,
          .data = request.data};
}

// Throws if the ranks' programs do not exchange the same messages and collectives.
void check_together(const std::vector<Plan>& plans, const Model& model) {
  std::deque<StepMap> maps;
  for (const auto& rank : plans) maps.emplace_back(model, rank.map);
  for (const auto which : {&Programs::first, &Programs::steady, &Programs::drain, &Programs::evaluate, &Programs::fill,
                           &Programs::gather, &Programs::visit}) {
    std::vector<Program> same;
    std::vector<passes::RankProgram> ranks;
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      same.push_back(plans[rank].programs.*which);
      ranks.push_back({maps[rank], plans[rank].programs.*which});
    }
    passes::check_messages(same, model::Skips(model));
    passes::check_collectives(ranks);
  }
}

// The time of a step of all ranks together, with what their walks move. Empty if the simulation would take too long because the
// programs have too many actions. Also empty if the budgets are very tight: a rank may fit only with the commits and
// evaluations between its steps, and this simulation leaves these out.
std::optional<double> step_together(const std::vector<Plan>& plans, const Model& model, const MachineProfile& profile) {
  constexpr std::uint64_t kTimedActions = 1'000'000;  // these take some seconds, and 300 bytes each
  constexpr std::uint64_t kFewestSteps = 3;           // because the first step differs from the others
  std::uint64_t actions = 0;
  for (const auto& plan : plans) actions += plan.programs.steady.actions.size();
  const auto steps = std::min(kTimedActions / std::max<std::uint64_t>(1, actions), RanksLife().steps);
  if (steps < kFewestSteps) return std::nullopt;
  try {
    const auto costs_of = [&](const StepMap& map) { return std::make_unique<walk::ProfileCosts>(map, profile); };
    return simulate_ranks(plans, model, costs_of, profile, {.steps = steps}).step_s.back();
  } catch (const memory::DoesNotFit&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<std::uint32_t> balanced_stages(const PlanRequest& request, const Model& model, const pipeline::Schedule& schedule,
                                           const MachineProfile& profile) {
  auto options = options_of(request, model);
  options.shape.micro_batches = 1;
  options.data = {};
  return pipeline::balance(pipeline::layer_costs(model, options, profile), schedule.placement.stages);
}

void set_pipeline(PlanRequest& request, pipeline::Pipeline pipeline) {
  request.pipeline = std::move(pipeline);
  if (request.pipeline->schedule.asynchronous()) {
    request.shape.micro_batches = request.pipeline->schedule.micro_batches;
    if (request.mesh.size(Axis::copy | Axis::shard) == 1)
      request.data.canonical = false;  // the sums of one rank are canonical anyway
    for (auto* const steps : {&request.steps, &request.evaluate_every, &request.commit_every})
      *steps /= updates_a_step(request);
  }
  static_cast<void>(pipeline::placement_of(*request.pipeline));  // throws if no rank can execute it
}

std::uint64_t updates_a_step(const PlanRequest& request) {
  if (!request.pipeline || !request.pipeline->schedule.asynchronous()) return 1;
  return request.pipeline->schedule.micro_batches / request.pipeline->schedule.update_every;
}

std::vector<Plan> plan_ranks(PlanRequest& request, const Model& model, const MachineProfile& profile, ThreadPool& pool) {
  std::vector<Plan> plans;
  for (std::uint32_t stage = 0; stage < request.mesh.pp; ++stage) {
    request.rank = first_rank(model, request, stage);
    plans.push_back(plan(model, request, profile, &pool));
  }
  if (std::ranges::all_of(plans, &Plan::fits)) check_together(plans, model);
  return plans;
}

FoundSchedule search_schedule(PlanRequest& request, const Model& model, const MachineProfile& profile, ThreadPool& pool) {
  const auto options = options_of(request, model);
  const auto found = pipeline::search(request.mesh.pp, request.shape.micro_batches,
                                      pipeline::layer_costs(model, options, profile), [&](const pipeline::Pipeline& p) {
                                        request.pipeline = p;
                                        check_request(model, request);
                                        return pipeline::stage_costs(p, model, options, profile);
                                      });
  FoundSchedule tried;
  for (const auto& candidate : found) {
    request.pipeline = candidate.pipeline;
    tried = {candidate.name, plan_ranks(request, model, profile, pool)};
    if (std::ranges::all_of(tried.plans, &Plan::fits)) break;
  }
  return tried;
}

PipelineStep step_of_pipeline(const PlanRequest& request, const std::vector<Plan>& ranks, const Model& model,
                              const MachineProfile& profile) {
  const auto steps = static_cast<double>(updates_a_step(request));
  if (const auto together = step_together(ranks, model, profile)) return {*together / steps, true};
  const auto costs = pipeline::stage_costs(*request.pipeline, model, ranks.front().map, profile);
  return {pipeline::simulate(request.pipeline->schedule, costs).makespan / steps, false};
}

}  // namespace terrace::planning
