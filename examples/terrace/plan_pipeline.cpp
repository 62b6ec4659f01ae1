#include <terrace/examples/terrace/plan_pipeline.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <vector>

#include <terrace/examples/lm/model.h>
#include <terrace/examples/terrace/device.h>
#include <terrace/examples/terrace/pipeline_setup.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/parallel/check_messages.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/pipeline/stage_costs.h>

namespace terrace::cli {

Exit plan_pipeline(const CommandLine& line) {
  const auto& config = line.config;
  const auto model = lm::make_model(model_config(config));
  const auto profile = machine_profile(config);
  auto request = plan_request(config);
  set_pipeline(request, config, model, profile);
  const auto& p = *request.pipeline;

  std::vector<Plan> plans;
  for (std::uint32_t rank = 0; rank < p.schedule.placement.ranks; ++rank) {
    request.pipeline_rank = rank;
    plans.push_back(plan(model, request, profile));
    if (!plans.back().fits) {
      const auto why = refusal_error(plans.back());
      throw Error(fmt::format("rank {} of the pipeline: {}", rank, why.what()), why.exit());
    }
    if (line.plan.program) fmt::print("# rank {}\n{}", rank, to_text(plans.back().programs.steady));
  }
  for (const auto which : {&Programs::first, &Programs::steady, &Programs::drain, &Programs::evaluate, &Programs::fill}) {
    std::vector<Program> same;
    for (const auto& rank : plans) same.push_back(rank.programs.*which);
    check_messages(same);
  }
  if (line.plan.program) return Exit::ok;

  const auto costs = pipeline::stage_costs(p, model, plans.front().map, profile);
  const auto timing = pipeline::simulate(p.schedule, costs);
  const double shortest_s = pipeline::shortest_step(p.schedule, costs);
  if (config.json) {
    auto ranks = nlohmann::json::array();
    for (const auto& rank : plans) ranks.push_back(to_json(rank));
    nlohmann::json j{{"fits", true},
                     {"schedule", config.schedule},
                     {"stage_layers", stage_layers(p)},
                     {"ranks", ranks},
                     {"step_time_s", timing.makespan},
                     {"bubble", timing.bubble()},
                     {"shortest_step_s", shortest_s}};
    j["peak_live"] = timing.peak_live;
    fmt::print("{}\n", j.dump(2));
    return Exit::ok;
  }
  fmt::print("{} with {:.2f}M parameters on {} ranks of a pipeline, {}, {} micro-batches, stages of {} layers\n\n",
             config.model, static_cast<double>(plans.front().parameters) * 1e-6, plans.size(), config.schedule,
             p.schedule.micro_batches, stage_layers(p));
  fmt::print("{:<5} {:>7} {:>10} {:>11} {:>11} {:>11} {:>15} {:>10} {:>6}\n", "rank", "layers", "state", "device peak",
             "host peak", "disk peak", "smallest device", "live peak", "idle");
  for (std::size_t r = 0; r < plans.size(); ++r) {
    const auto& rank = plans[r];
    const auto layers = std::ranges::count(rank.map.pipeline.rank_of, static_cast<std::uint32_t>(r));
    fmt::print("{:<5} {:>7} {:>10} {:>11} {:>11} {:>11} {:>15} {:>10} {:>5.1f}%\n", r, layers, format_bytes(rank.state_bytes),
               format_bytes(rank.peak_bytes[Tier::device]), format_bytes(rank.peak_bytes[Tier::host]),
               format_bytes(rank.peak_bytes[Tier::disk]), format_bytes(rank.smallest_bytes[Tier::device]), timing.peak_live[r],
               100 * timing.idle[r] / timing.makespan);
  }
  fmt::print(
      "\na step takes {:.3f} s where only other ranks are waited for, and a rank is idle for {:.1f} % of it in the mean; no "
      "order "
      "of these stages takes less than {:.3f} s\n",
      timing.makespan, 100 * timing.bubble(), shortest_s);
  return Exit::ok;
}

}  // namespace terrace::cli
