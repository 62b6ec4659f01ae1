// terrace plan: prints what `train` with the same flags would do. It allocates nothing.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include <CLI/CLI.hpp>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/trace.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/cli/refusal.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/setting_flags.h>
#include <terrace/examples/terrace/config/usual_settings.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/examples/terrace/data/token_cache.h>
#include <terrace/examples/terrace/plan/choose_batch.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/plan/cluster.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/pipeline_setup.h>
#include <terrace/examples/terrace/plan/plan_lines.h>
#include <terrace/examples/terrace/plan/plan_pipeline.h>
#include <terrace/examples/terrace/plan/plan_search.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/plan/shipped_clusters.h>
#include <terrace/parallel/plan/flops.h>

namespace terrace::cli {
namespace {

struct Where {
  RunConfig config;
  MachineProfile profile;
};

// Sets the steps of --epochs, if the data is given.
RunConfig with_steps(RunConfig config) {
  if (config.train.epochs == 0 || config.data.files.empty()) return config;
  make_token_files(config);
  set_steps_of_epochs(config, RunData(config).sequences_of_an_epoch());
  return config;
}

// Makes the choices that train would make, too.
RunConfig complete(RunConfig config, const MachineProfile& profile) {
  const auto sequences = [&]() -> std::uint64_t {
    if (config.data.files.empty()) return 0;
    make_token_files(config);
    return RunData(config).sequences_of_an_epoch();
  };
  return with_steps(with_chosen_tiles(with_chosen_batch(config, profile, sequences)));
}

Where here(const RunConfig& given) {
  const auto profile = machine_profile(given);
  const auto config = complete(given, profile);
  // With assumed costs, the plan may be for another machine.
  if (!config.plan.assumed_costs && config.parallel.pp <= 1) demand_device(config);
  return {config, profile};
}

Where there(const CommandLine& line) {
  const auto cluster = load_cluster(line.plan.cluster_profile);
  const ClusterSize size{line.plan.nodes, line.plan.gpus_per_node};
  const auto profile = rank_profile(cluster, size);
  return {complete(on_cluster(line.config, cluster, size), profile), profile};
}

// The ranks and the sequences of a step are those that the flags have without --search.
Exit search(CommandLine line) {
  line.config.plan.tiles = Tiles::off;  // choosing tiles would take as long as planning a candidate
  if (line.plan.program || !line.plan.trace.empty() || !line.plan.timeline.empty() || !line.plan.write_schedule.empty())
    throw base::Refused(
        "--search compares plans, and --program, --trace, --timeline and --write-schedule show one\n  search first, then "
        "plan with the flags of a line");
  if (line.config.parallel.shard_group != 0)
    throw base::Refused(
        "--search tries other numbers of data ranks, which --shard-group need not divide\n  leave --shard-group out");
  if (line.plan.search < 1)
    throw base::Refused(
        fmt::format("--search {}: at least one plan must be shown\n  give --search 1 or more", line.plan.search));
  if (line.plan.search_seconds < 0 || line.plan.search_plans < 0)
    throw base::Refused("--search-seconds and --search-plans are at least 0\n  give 0 for a search without such a limit");
  // Without a deadline there is time to plan all micro-batches, so nothing is extrapolated.
  const SearchLimits limits{
      .seconds = line.plan.search_seconds, .plans = line.plan.search_plans, .extrapolates = line.plan.search_seconds > 0};
  const auto ranks_of = [](const RunConfig& c, std::int64_t ranks_per_node) {
    return RanksOfSearch{
        c.parallel.ranks(), ranks_per_node,
        c.train.batch_size * c.train.grad_accumulation * c.parallel.ep * std::max<std::int64_t>(1, c.parallel.dp)};
  };
  if (line.plan.cluster_profile.empty()) {
    auto config = line.config;
    config.plan.assumed_costs = true;
    return plan_search(config, ranks_of(config, config.parallel.ranks()), machine_profile(config), line.plan.search, limits);
  }
  const auto cluster = load_cluster(line.plan.cluster_profile);
  const ClusterSize size{line.plan.nodes, line.plan.gpus_per_node};
  const auto given = on_cluster(line.config, cluster, size);
  return plan_search(given, ranks_of(given, given.found.local_ranks), rank_profile(cluster, size), line.plan.search, limits);
}

Exit run_plan(const CommandLine& given) {
  auto line = given;
  for (const auto& warning : warnings_of(line.config)) base::warn(warning);
  if (const auto warning = warning_of_profile(line.config); warning && line.plan.cluster_profile.empty()) base::warn(*warning);
  if (line.plan.search >= 0) return search(line);
  for (const auto& warning : warnings_of_data(line.config)) base::warn(warning);
  const auto where = line.plan.cluster_profile.empty() ? here(line.config) : there(line);
  const auto& [config, profile] = where;
  if (config.parallel.pp > 1) return plan_pipeline(line.plan, config, profile);
  if (!line.plan.timeline.empty() || !line.plan.write_schedule.empty())
    throw base::Refused("--timeline and --write-schedule are for pipelines\n  add --pp, the number of its ranks");
  const auto model = lm::make_model(model_config(config));
  auto request = plan_request(config);
  set_pipeline(request, config, model, profile);
  Trace trace;
  auto p = make_plan(config, model, request, profile, line.plan.trace.empty() ? nullptr : &trace);
  if (p.fits) {
    auto pool = make_pool(config);
    p.peak_bytes = peak_of_data_ranks(p, model, request, profile, pool);
  }
  if (p.fits && !line.plan.trace.empty()) trace.write(line.plan.trace, "terrace plan");
  if (config.run.json) {
    auto json = to_json(config, p);
    if (!line.plan.cluster_profile.empty()) json["cluster_profile"] = line.plan.cluster_profile.string();
    if (p.fits && config.parallel.ranks() > 1)
      json["model_flop_s"] = planning::flops_of(model, request.shape.batch, p.programs.steady).model / p.times.seconds;
    fmt::print("{}\n", json.dump(2));
    return p.fits ? Exit::ok : Exit::does_not_fit;
  }
  if (!p.fits) throw refusal_error(config, p);
  if (line.plan.program) {
    fmt::print("{}", to_text(p.programs.steady));
    return Exit::ok;
  }

  const auto t = traffic_of_step(p);
  if (!config.found.chosen.empty()) fmt::print("chosen: {}\n", fmt::join(config.found.chosen, ", "));
  fmt::print("{}{} with {:.2f}M parameters, {} of state, chunks of {} elements\n", *config.model.family.get().name,
             tiles_in_words(config), static_cast<double>(p.parameters) * 1e-6, format_bytes(p.state_bytes),
             p.map.chunk_elements);
  const auto& recipe = p.map.recipe;
  fmt::print("{} with recipe {}:", config.train.optimizer, recipe.name);
  for (const auto kind : recipe.kinds())
    fmt::print(" {} {}{}", name_of(kind), name_of(recipe.format_of(kind)), kind == recipe.kinds().back() ? "\n" : ",");
  fmt::print("updates run on {}, prefetch depth {}\n", in_words(p.map.update), p.prefetch_depth);
  fmt::print("{}", choice_lines(p));
  fmt::print("\n");
  fmt::print("{:<8} {:>12} {:>12} {:>16}\n", "tier", "budget", "peak", "smallest legal");
  const auto budget = budgets(config);
  for (const auto tier : kAllTiers) {
    if (tier == Tier::disk && config.memory.nvme_path.empty()) continue;
    fmt::print("{:<8} {:>12} {:>12} {:>16}\n", name_of(tier), format_bytes(budget.of(tier)), format_bytes(p.peak_bytes[tier]),
               tier == Tier::disk ? "" : format_bytes(p.smallest_bytes[tier]));
  }
  fmt::print("\na step moves: disk read {}, disk write {}, upload {}, download {}\n", format_bytes(t.read),
             format_bytes(t.write), format_bytes(t.upload), format_bytes(t.download));
  fmt::print("step time {:.3f} s, of which compute {:.3f} s, the least possible; bound by {}{}\n", p.times.seconds, p.floor_s,
             p.binding, p.link.empty() ? "" : fmt::format(" ({})", p.link));
  for (const auto& [cause, seconds] : p.times.stall_s) fmt::print("  stall by {}: {:.3f} s\n", cause, seconds);
  if (!p.times.stall_s.empty())
    fmt::print("  of these, {:.3f} s before the step's first action and {:.3f} s after its last one\n", p.times.begin_s,
               p.times.end_s);
  if (config.parallel.ranks() > 1) fmt::print("{}", rank_lines(config, model, request, p));
  if (p.average.every != 0) fmt::print("{}", average_line(p));
  if (p.commits != 0) fmt::print("{}", commit_line(config, p));
  fmt::print("{}", data_lines(config));
  if (profile.measured_at.empty())
    fmt::print("\nthe times use assumed rates; terrace doctor --measure measures this machine\n");
  else if (profile.disk_assumed && t.read + t.write > 0)
    fmt::print("\nthe disk times use assumed rates; terrace doctor --measure --nvme-path DIR measures the disk\n");
  return Exit::ok;
}

void add_plan_options(CLI::App& sub, CommandLine& out) {
  sub.add_option("--search", out.plan.search,
                 "try all legal --dp, --pp, --tp, --tp-mode, --cp, --cp-mode and --zero for as many ranks and sequences a "
                 "step as the other flags give, and print so many of the fastest (default 5)")
      ->expected(0, 1)
      ->default_str("5")
      ->check([](const std::string& count) { return count.starts_with('-') ? "at least one plan must be shown" : ""; })
      ->type_name("[COUNT]");
  add_number(sub, "--search-seconds", out.plan.search_seconds,
             "when --search ends; it plans the best by estimate first. 0: when all are planned, in full");
  sub.add_option("--search-plans", out.plan.search_plans, "how many --search plans, the best by estimate; 0: all")
      ->capture_default_str();
  sub.add_flag("--program", out.plan.program, "print the program of a steady step");
  sub.add_option("--trace", out.plan.trace, "write the simulated step as a trace file for Perfetto")->type_name("FILE");
  auto* const profile = sub.add_option("--cluster-profile", out.plan.cluster_profile,
                                       fmt::format("plan for the machine or cluster that this file describes, or for one of {}",
                                                   fmt::join(shipped_clusters(), ", ")));
  profile->type_name("FILE|NAME")->group("cluster");
  for (auto* const size :
       {sub.add_option("--nodes", out.plan.nodes, "number of nodes (default 1)"),
        sub.add_option("--gpus-per-node", out.plan.gpus_per_node, "ranks on each node; 0: one for each GPU")})
    size->needs(profile)->group("cluster");
  auto* const timeline =
      sub.add_option("--timeline", out.plan.timeline, "write a picture (SVG) of the simulated step of a pipeline");
  timeline->type_name("FILE");
  sub.add_option("--measured", out.plan.measured, "draw the last step of this run beside the simulated one, lane by lane")
      ->type_name("RUN")
      ->needs(timeline);
  sub.add_option("--write-schedule", out.plan.write_schedule, "write the schedule of a pipeline as text, for --schedule")
      ->type_name("FILE");
}

}  // namespace

Command plan_command() {
  return {
      .name = "plan",
      .help = "print the memory, data movement and time of a run, without running it",
      .takes = {"all"},
      .examples = {"terrace plan --preset full-8b-24gb-nvme --model Llama-3.1-8B",
                   "terrace plan --config run.toml --dp 8 --search", "terrace plan --config run.toml --trace step.json"},
      .shown = {{"--search", "plan other meshes, and print the fastest"}, {"--preset", "settings of a task; help lists them"}},
      .add_options = add_plan_options,
      .run = run_plan};
}

}  // namespace terrace::cli
