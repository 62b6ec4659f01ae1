#include <terrace/examples/terrace/plan_pipeline.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <vector>

#include <terrace/core/error.h>
#include <terrace/core/text_file.h>
#include <terrace/core/thread_pool.h>
#include <terrace/examples/lm/model.h>
#include <terrace/examples/terrace/device.h>
#include <terrace/examples/terrace/lanes_picture.h>
#include <terrace/examples/terrace/pipeline_setup.h>
#include <terrace/examples/terrace/rank_log.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/examples/terrace/timeline.h>
#include <terrace/parallel/check_messages.h>
#include <terrace/parallel/check_request.h>
#include <terrace/parallel/pipeline/search.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/pipeline/stage_costs.h>
#include <terrace/parallel/ranks_simulator.h>

namespace terrace::cli {
namespace {

// Of every rank, proved together.
std::vector<Plan> plan_ranks(const Model& model, PlanRequest& request, const MachineProfile& profile, ThreadPool& pool) {
  std::vector<Plan> plans;
  for (std::uint32_t rank = 0; rank < request.pipeline->schedule.placement.ranks; ++rank) {
    request.pipeline_rank = rank;
    plans.push_back(plan(model, request, profile, &pool));
    if (plans.back().fits) continue;
    const auto why = refusal_error(plans.back());
    throw Error(fmt::format("rank {} of the pipeline: {}", rank, why.what()), why.exit());
  }
  for (const auto which : {&Programs::first, &Programs::steady, &Programs::drain, &Programs::evaluate, &Programs::fill}) {
    std::vector<Program> same;
    for (const auto& rank : plans) same.push_back(rank.programs.*which);
    check_messages(same, Skips(model));
  }
  return plans;
}

// The fastest order whose ranks fit into their budgets, and its plans.
std::vector<Plan> search_ranks(const RunConfig& c, const Model& model, PlanRequest& request, const MachineProfile& profile,
                               ThreadPool& pool, std::string& name) {
  const StepMap::Options options{
      .recipe = Recipe::of(model.dtype, request.recipe, request.states), .shape = request.shape, .data = request.data};
  const auto found = pipeline::search(static_cast<std::uint32_t>(c.pp), request.shape.micro_batches,
                                      pipeline::layer_costs(model, options, profile), [&](const pipeline::Pipeline& p) {
                                        request.pipeline = p;
                                        check_request(model, request);
                                        return pipeline::stage_costs(p, model, options, profile);
                                      });
  std::optional<Error> why;
  for (const auto& candidate : found) {
    request.pipeline = candidate.pipeline;
    name = candidate.name;
    try {
      return plan_ranks(model, request, profile, pool);
    } catch (const Error& error) {
      if (error.exit() != Exit::does_not_fit) throw;
      why = error;
    }
  }
  throw Error(*why);
}

void write_file(const std::filesystem::path& file, const std::string& text) try {
  write_text_file(file, text);
} catch (const Error& error) {
  throw Error(fmt::format("{} cannot be written: {}\n  make room or mend the rights there, or name another file", file.string(),
                          error.what()));
}

constexpr std::uint64_t kSteps = 4;

RanksTimes times_together(const std::vector<Plan>& plans, const Model& model, const MachineProfile& profile,
                          std::vector<Trace>* traces = nullptr) {
  const auto costs_of = [&](const StepMap& map) { return std::make_unique<ProfileCosts>(map, profile); };
  return simulate_ranks(plans, model, costs_of, profile, {.steps = kSteps, .traces = traces});
}

// All ranks together, with what their walks move; empty where there are so many actions that nobody would wait for it.
std::optional<double> step_together(const std::vector<Plan>& plans, const Model& model, const MachineProfile& profile) {
  constexpr std::uint64_t kTimedActions = 200'000;
  std::uint64_t actions = 0;
  for (const auto& plan : plans) actions += kSteps * plan.programs.steady.actions.size();
  if (actions > kTimedActions) return std::nullopt;
  return times_together(plans, model, profile).step_s.back();
}

// Each rank's lanes in a steady step, and in the last step of the run.
std::string lanes_beside(const std::filesystem::path& run, const std::vector<Plan>& plans, const Model& model,
                         const MachineProfile& profile, const std::string& title) {
  std::vector<RankLanes> lanes;
  for (std::uint32_t r = 0; r < plans.size(); ++r) {
    const auto file = trace_file_of(run, r * plans[r].map.data.ranks);  // of the ranks with these layers, the first one's
    if (!std::filesystem::exists(file))
      throw Error(fmt::format("{} is missing\n  a pipeline of {} ranks writes it when it ends", file.string(), plans.size()),
                  Exit::usage);
    lanes.push_back({.measured = read_trace_window(file, 0)});
  }
  std::vector<Trace> traces(plans.size());
  const auto times = times_together(plans, model, profile, &traces);
  double end_s = 0;
  for (const auto& trace : traces)
    for (const auto& span : trace.spans()) end_s = std::max(end_s, static_cast<double>(span.end_ns) * 1e-9);
  for (std::size_t r = 0; r < plans.size(); ++r) lanes[r].simulated = window_of(traces[r], end_s, times.step_s.back());
  return lanes_picture(lanes, title);
}

}  // namespace

Exit plan_pipeline(const CommandLine& line) {
  const auto& config = line.config;
  const auto model = lm::make_model(model_config(config));
  const auto profile = machine_profile(config);
  auto request = plan_request(config);
  auto name = config.schedule;
  ThreadPool pool(static_cast<int>(config.threads));
  std::vector<Plan> plans;
  if (config.schedule == "auto") {
    plans = search_ranks(config, model, request, profile, pool, name);
  } else {
    set_pipeline(request, config, model, profile);
    plans = plan_ranks(model, request, profile, pool);
  }
  const auto& p = *request.pipeline;
  const auto costs = pipeline::stage_costs(p, model, plans.front().map, profile);
  const auto timing = pipeline::simulate(p.schedule, costs);
  // An asynchronous order's tasks are those of several steps.
  const auto steps = static_cast<double>(updates_a_step(request));
  const double step_s = timing.makespan / steps, shortest_s = pipeline::shortest_step(p.schedule, costs) / steps;
  auto together_s = line.plan.program ? std::nullopt : step_together(plans, model, profile);
  if (together_s) *together_s /= steps;
  const auto title = fmt::format("{} on {} ranks, {}, {} micro-batches, stages of {} layers", config.model, plans.size(), name,
                                 p.schedule.micro_batches, stage_layers(p));
  if (!line.plan.timeline.empty())
    write_file(line.plan.timeline, line.plan.measured.empty() ? timeline(p.schedule, costs, title)
                                                              : lanes_beside(line.plan.measured, plans, model, profile, title));
  if (!line.plan.write_schedule.empty())
    write_file(line.plan.write_schedule, fmt::format("# {}\n{}", title, to_text(p.schedule)));

  if (line.plan.program) {
    for (std::size_t r = 0; r < plans.size(); ++r) fmt::print("# rank {}\n{}", r, to_text(plans[r].programs.steady));
    return Exit::ok;
  }
  if (config.json) {
    auto ranks = nlohmann::json::array();
    for (const auto& rank : plans) ranks.push_back(to_json(rank));
    nlohmann::json j{{"fits", true},          {"schedule", name},          {"stage_layers", stage_layers(p)}, {"ranks", ranks},
                     {"step_time_s", step_s}, {"bubble", timing.bubble()}, {"shortest_step_s", shortest_s}};
    if (together_s) j["step_with_moves_s"] = *together_s;
    j["peak_live"] = timing.peak_live;
    fmt::print("{}\n", j.dump(2));
    return Exit::ok;
  }
  fmt::print("{}\n\n{:<5} {:>7} {:>10} {:>11} {:>11} {:>11} {:>15} {:>10} {:>6}\n", title, "rank", "layers", "state",
             "device peak", "host peak", "disk peak", "smallest device", "live peak", "idle");
  for (std::size_t r = 0; r < plans.size(); ++r) {
    const auto& rank = plans[r];
    std::uint32_t layers = 0;
    for (std::uint32_t l = 0; l < p.layers(); ++l) layers += rank.map.pipeline.holds(l) ? 1 : 0;
    fmt::print("{:<5} {:>7} {:>10} {:>11} {:>11} {:>11} {:>15} {:>10} {:>5.1f}%\n", r, layers, format_bytes(rank.state_bytes),
               format_bytes(rank.peak_bytes[Tier::device]), format_bytes(rank.peak_bytes[Tier::host]),
               format_bytes(rank.peak_bytes[Tier::disk]), format_bytes(rank.smallest_bytes[Tier::device]), timing.peak_live[r],
               100 * timing.idle[r] / timing.makespan);
  }
  fmt::print(
      "\na step takes {:.3g} s where only other ranks are waited for, and a rank is idle for {:.1f} % of it in the mean; no "
      "order "
      "of these stages takes less than {:.3g} s\n",
      step_s, 100 * timing.bubble(), shortest_s);
  if (together_s)
    fmt::print("with every rank's moves, updates and messages, all timed together, it takes {:.3g} s\n", *together_s);
  return Exit::ok;
}

}  // namespace terrace::cli
