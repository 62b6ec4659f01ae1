#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/plan/plan_pipeline.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <vector>

#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/lanes_picture.h>
#include <terrace/examples/terrace/plan/pipeline_setup.h>
#include <terrace/examples/terrace/plan/plan_lines.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/plan/timeline.h>
#include <terrace/examples/terrace/ranks/rank_log.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/plan/flops.h>
#include <terrace/parallel/plan/ranks_simulator.h>
#include <terrace/parallel/plan/stage_costs.h>

namespace terrace::cli {
namespace {

void write_file(const std::filesystem::path& file, const std::string& text) try {
  write_text_file(file, text);
} catch (const Error& error) {
  throw Error(fmt::format("{} cannot be written: {}\n  make room or change the permissions there, or give another file",
                          file.string(), error.what()));
}

// What the ranks of a cluster send, and how much they compute. `updates`: a program's step has this many; the lines are for
// one.
std::string cluster_lines(const RunConfig& config, const Model& model, const std::vector<Plan>& plans, double updates,
                          double step_s) {
  mapping::LinkBytes most;
  planning::Flops all;
  for (const auto& rank : plans) {
    most.within = std::max(most.within, rank.steady_links.within / updates);
    most.between = std::max(most.between, rank.steady_links.between / updates);
    const auto flops = planning::flops_of(model, rank.map.shape.batch, rank.programs.steady);
    all.model += flops.model / updates;
    all.with_recomputation += flops.with_recomputation / updates;
  }
  const auto tokens =
      static_cast<double>(config.train.batch_size * config.model.seq_len * config.train.grad_accumulation * config.parallel.dp);
  const auto rate = [&](double flops) { return flops / static_cast<double>(plans.size()) / step_s * 1e-12; };
  return fmt::format(
      "{} ranks, {} on each node; in a step a rank sends at most {} within its node and {} to other nodes\n"
      "{}{:.4g} tokens a step, {:.4g} tokens/s; {:.3g} TFLOP/s of model computation a rank, {:.3g} with recomputation\n",
      config.parallel.ranks(), ranks_of_node(config), format_bytes(static_cast<std::uint64_t>(most.within)),
      format_bytes(static_cast<std::uint64_t>(most.between)), sum_line(config, plans.front().map.data.sum_order()), tokens,
      tokens / step_s, rate(all.model), rate(all.with_recomputation));
}

// A picture of each rank's lanes in a simulated steady step, and in the last step of the run.
std::string lanes_beside(const std::filesystem::path& run, const std::vector<Plan>& plans, const Model& model,
                         const MachineProfile& profile, const std::string& title) {
  std::vector<RankLanes> lanes;
  for (const auto& plan : plans) {
    const auto file = trace_file_of(run, plan.map.rank);  // the first of the ranks with these layers
    if (!std::filesystem::exists(file))
      throw base::Refused(fmt::format(
          "--measured: {} is missing\n  give the directory of a run with --pp {} that has ended: it writes this file "
          "when it ends",
          file.string(), plans.size()));
    lanes.push_back({.measured = read_trace_window(file, 0)});
  }
  std::vector<Trace> traces(plans.size());
  const auto costs_of = [&](const StepMap& map) { return std::make_unique<walk::ProfileCosts>(map, profile); };
  const auto times = planning::simulate_ranks(plans, model, costs_of, profile, {.traces = &traces});
  double end_s = 0;
  for (const auto& trace : traces)
    for (const auto& span : trace.spans()) end_s = std::max(end_s, static_cast<double>(span.end_ns) * 1e-9);
  for (std::size_t r = 0; r < plans.size(); ++r) lanes[r].simulated = window_of(traces[r], end_s, times.step_s.back());
  return lanes_picture(lanes, title);
}

}  // namespace

Exit plan_pipeline(const PlanOptions& options, const RunConfig& config, const MachineProfile& profile) {
  const auto model = lm::make_model(model_config(config));
  auto request = plan_request(config);
  ThreadPool pool(static_cast<int>(config.run.threads));
  set_pipeline(request, config, model, profile);
  auto [name, plans] = plans_of_ranks(request, config, model, profile, pool);
  for (auto& stage : plans) stage.peak_bytes = peak_of_data_ranks(stage, model, request, profile, pool);
  const auto& p = *request.pipeline;
  const auto costs = pipeline::stage_costs(p, model, plans.front().map, profile);
  const auto timing = pipeline::simulate(p.schedule, costs);
  // The tasks of an asynchronous schedule are those of several steps.
  const auto steps = static_cast<double>(planning::updates_a_step(request));
  const double step_s = timing.makespan / steps, shortest_s = pipeline::shortest_step(p.schedule, costs) / steps;
  const auto title = fmt::format("{} on {} ranks, {}, {} micro-batches, stages of {} layers", *config.model.family.get().name,
                                 plans.size(), name, p.schedule.micro_batches, stage_layers(p));
  if (!options.timeline.empty())
    write_file(options.timeline, options.measured.empty() ? timeline(p.schedule, costs, title)
                                                          : lanes_beside(options.measured, plans, model, profile, title));
  if (!options.write_schedule.empty()) write_file(options.write_schedule, fmt::format("# {}\n{}", title, to_text(p.schedule)));

  if (options.program) {
    for (std::size_t r = 0; r < plans.size(); ++r) fmt::print("# rank {}\n{}", r, to_text(plans[r].programs.steady));
    return Exit::ok;
  }
  const auto step = planning::step_of_pipeline(request, plans, model, profile);
  if (config.run.json) {
    auto ranks = nlohmann::json::array();
    for (const auto& rank : plans) ranks.push_back(to_json(config, rank));
    nlohmann::json j{{"fits", true},          {"schedule", name},          {"stage_layers", stage_layers(p)}, {"ranks", ranks},
                     {"step_time_s", step_s}, {"bubble", timing.bubble()}, {"shortest_step_s", shortest_s}};
    if (step.together) j["step_with_moves_s"] = step.seconds;
    j["step_time_is_least"] = !step.together;
    j["peak_live"] = timing.peak_live;
    fmt::print("{}\n", j.dump(2));
    return Exit::ok;
  }
  fmt::print("{}\n\n{:<5} {:>7} {:>10} {:>11} {:>11} {:>11} {:>15} {:>10} {:>6}\n", title, "rank", "layers", "state",
             "device peak", "host peak", "disk peak", "smallest device", "live peak", "idle");
  for (std::size_t r = 0; r < plans.size(); ++r) {
    const auto& rank = plans[r];
    const mesh::HeldLayers held(rank.map.pipeline, static_cast<std::uint32_t>(r));
    std::uint32_t layers = 0;
    for (std::uint32_t l = 0; l < p.layers(); ++l) layers += held.holds(l) ? 1 : 0;
    fmt::print("{:<5} {:>7} {:>10} {:>11} {:>11} {:>11} {:>15} {:>10} {:>5.1f}%\n", r, layers, format_bytes(rank.state_bytes),
               format_bytes(rank.peak_bytes[Tier::device]), format_bytes(rank.peak_bytes[Tier::host]),
               format_bytes(rank.peak_bytes[Tier::disk]), format_bytes(rank.smallest_bytes[Tier::device]), timing.peak_live[r],
               100 * timing.idle[r] / timing.makespan);
  }
  fmt::print("\nstep time {}{:.3g} s{}\n", step.together ? "" : "at least ", step.seconds,
             step.together
                 ? ", with the moves, updates and messages of all ranks"
                 : ", of the schedule alone: its moves, updates and messages cannot be simulated, because the program is too "
                   "long or the budgets are too tight");
  if (!options.cluster_profile.empty()) fmt::print("{}", cluster_lines(config, model, plans, steps, step.seconds));
  fmt::print("of the schedule alone: a rank idles {:.1f} % of the time on average, and {}\n", 100 * timing.bubble(),
             step_s < 1.0005 * shortest_s ? "no schedule of these stages is faster"
                                          : fmt::format("another schedule of these stages could save {:.1f} % at best",
                                                        100 * (1 - shortest_s / step_s)));
  fmt::print("{}", data_lines(config));
  return Exit::ok;
}

}  // namespace terrace::cli
