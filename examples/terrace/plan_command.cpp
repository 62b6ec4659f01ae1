// terrace plan: what `train` with the same flags would do, before anything is allocated.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include <terrace/core/error.h>
#include <terrace/core/trace.h>
#include <terrace/examples/lm/model.h>
#include <terrace/examples/terrace/cluster.h>
#include <terrace/examples/terrace/commands.h>
#include <terrace/examples/terrace/device.h>
#include <terrace/examples/terrace/pipeline_setup.h>
#include <terrace/examples/terrace/plan_pipeline.h>
#include <terrace/examples/terrace/setup.h>

namespace terrace::cli {

namespace {

// What was chosen, and what it is faster than.
void print_choice(const Plan& p) {
  fmt::print("order {}\n", to_text(p.choice, p.layers));
  if (p.tried.size() < 2) return;
  std::vector<TriedChoice> others;
  for (const auto& t : p.tried)
    if (t.choice != p.choice) others.push_back(t);
  const auto chosen = std::ranges::find(p.tried, p.choice, &TriedChoice::choice);
  std::ranges::stable_sort(others, {}, [](const TriedChoice& t) { return t.seconds.value_or(1e30); });
  const auto fits = [](const TriedChoice& t) { return t.seconds.has_value(); };
  const auto fitting = std::ranges::count_if(p.tried, fits);
  fmt::print("  chosen of {} that were simulated, of which {} fit", p.tried.size(), fitting);
  if (chosen != p.tried.end() && chosen->seconds) fmt::print(": {:.3f} s a step", *chosen->seconds);
  fmt::print("\n");
  if (!others.empty() && others.front().seconds)
    fmt::print("  the next: {:.3f} s, {}\n", *others.front().seconds, to_text(others.front().choice, p.layers));
  const auto& plainest = p.tried.front();
  if (plainest.choice == p.choice || plainest.choice == others.front().choice) return;
  fmt::print("  the plainest: {}, {}\n", plainest.seconds ? fmt::format("{:.3f} s", *plainest.seconds) : "does not fit",
             to_text(plainest.choice, p.layers));
}

struct Where {
  RunConfig config;
  MachineProfile profile;
};

Where here(const RunConfig& config) {
  if (!config.assumed_costs) demand_device(config);  // else the plan is for another machine, perhaps
  return {config, machine_profile(config)};
}

Where there(const CommandLine& line) {
  const auto cluster = load_cluster(line.plan.cluster_profile);
  const ClusterSize size{line.plan.nodes, line.plan.gpus_per_node};
  return {on_cluster(line.config, cluster, size), rank_profile(cluster, size)};
}

// Of a step on one rank: the model's own, a forward and twice as much behind it; and with what is computed again.
struct Flops {
  double model = 0, with_recomputation = 0;
};
Flops flops_of(const Model& model, const StepShape& shape, const Program& step) {
  Flops flops;
  for (const auto& a : step.actions) {
    const double forward = a.op <= Op::backward ? model.layers[a.layer]->forward_flops(shape.batch) : 0;
    if (a.op == Op::recompute) flops.with_recomputation += forward;
    if (a.op == Op::backward) flops.model += 3 * forward;
  }
  flops.with_recomputation += flops.model;
  return flops;
}

void print_ranks(const RunConfig& config, const Model& model, const PlanRequest& request, const Plan& p) {
  const auto ranks = request.data.ranks;
  const auto tokens = static_cast<double>(config.batch_size * config.seq_len * config.grad_accumulation) * ranks;
  fmt::print("{} ranks, {} on a node; each sends {} within its node and {} to others a step\n", ranks, ranks_of_machine(config),
             format_bytes(static_cast<std::uint64_t>(p.steady_links.within)),
             format_bytes(static_cast<std::uint64_t>(p.steady_links.between)));
  const auto flops = flops_of(model, request.shape, p.programs.steady);
  const auto rate = [&](double of) { return of / p.times.seconds * 1e-12; };
  fmt::print("{:.4g} tokens a step, {:.4g} tokens/s; {:.3g} TFLOP/s of the model a rank, {:.3g} with recomputation\n", tokens,
             tokens / p.times.seconds, rate(flops.model), rate(flops.with_recomputation));
}

}  // namespace

Exit plan_command(const CommandLine& line) {
  if (line.config.pp > 1) {
    if (!line.plan.cluster_profile.empty())
      throw Error("--cluster-profile plans for ranks that hold the same layers\n  leave out --pp, or plan it for this machine",
                  Exit::usage);
    return plan_pipeline(line);
  }
  if (!line.plan.timeline.empty() || !line.plan.write_schedule.empty())
    throw Error("--timeline and --write-schedule show a pipeline\n  add --pp, the number of its ranks", Exit::usage);
  const auto [config, profile] = line.plan.cluster_profile.empty() ? here(line.config) : there(line);
  const auto model = lm::make_model(model_config(config));
  auto request = plan_request(config);
  set_pipeline(request, config, model, profile);
  Trace trace;
  const auto p = make_plan(config, model, request, profile, line.plan.trace.empty() ? nullptr : &trace);
  if (p.fits && !line.plan.trace.empty()) trace.write(line.plan.trace, "terrace plan");
  if (config.json) {
    auto json = to_json(p);
    if (p.fits && request.data.ranks > 1)
      json["model_flop_s"] = flops_of(model, request.shape, p.programs.steady).model / p.times.seconds;
    fmt::print("{}\n", json.dump(2));
    return p.fits ? Exit::ok : Exit::does_not_fit;
  }
  if (!p.fits) throw refusal_error(p);
  if (line.plan.program) {
    fmt::print("{}", to_text(p.programs.steady));
    return Exit::ok;
  }

  const auto& t = p.steady_traffic;
  fmt::print("{} with {:.2f}M parameters, {} of state, chunks of {} elements\n", config.model,
             static_cast<double>(p.parameters) * 1e-6, format_bytes(p.state_bytes), p.map.chunk_elements);
  const auto& recipe = p.map.recipe;
  fmt::print("{} with recipe {}:", config.optimizer, recipe.name);
  for (const auto kind : recipe.kinds())
    fmt::print(" {} {}{}", name_of(kind), name_of(recipe.format_of(kind)), kind == recipe.kinds().back() ? "\n" : ",");
  fmt::print("updates run on the {}, prefetch depth {}\n", name_of(p.map.update_tier), p.prefetch_depth);
  print_choice(p);
  fmt::print("\n");
  fmt::print("{:<8} {:>12} {:>12} {:>16}\n", "tier", "budget", "peak", "smallest legal");
  const auto budget = budgets(config);
  for (const auto tier : kAllTiers) {
    if (tier == Tier::disk && config.nvme_path.empty()) continue;
    fmt::print("{:<8} {:>12} {:>12} {:>16}\n", name_of(tier), format_bytes(budget.of(tier)), format_bytes(p.peak_bytes[tier]),
               tier == Tier::disk ? "" : format_bytes(p.smallest_bytes[tier]));
  }
  fmt::print("\na step moves: disk read {}, disk write {}, upload {}, download {}\n", format_bytes(t.read),
             format_bytes(t.write), format_bytes(t.upload), format_bytes(t.download));
  fmt::print("step time {:.3f} s, of which compute {:.3f} s (the floor); {}{} binds\n", p.times.seconds, p.floor_s, p.binding,
             p.link.empty() ? "" : fmt::format(" ({})", p.link));
  for (const auto& [cause, seconds] : p.times.stall_s) fmt::print("  stall by {}: {:.3f} s\n", cause, seconds);
  if (request.data.ranks > 1) print_ranks(config, model, request, p);
  if (p.commits != 0)
    fmt::print("a commit writes {} in {:.3f} s; {} of them in this run, {} generation{} of the state on disk\n",
               format_bytes(p.commit_traffic.write), p.commit_seconds, p.commits, p.generations, p.generations == 1 ? "" : "s");
  if (profile.measured_at.empty())
    fmt::print("\nthe times rest on assumed rates: terrace doctor --measure takes this machine's own\n");
  return Exit::ok;
}

}  // namespace terrace::cli
