// terrace plan: what `train` with the same flags would do, before anything is allocated.
#include <fmt/format.h>

#include <cstdio>

#include <terrace/core/trace.h>
#include <terrace/examples/lm/model.h>
#include <terrace/examples/terrace/commands.h>
#include <terrace/examples/terrace/device.h>
#include <terrace/examples/terrace/setup.h>

namespace terrace::cli {

Exit plan_command(const CommandLine& line) {
  const auto& config = line.config;
  if (!config.assumed_costs) demand_device(config);  // else the plan is for another machine, perhaps
  const auto model = lm::make_model(model_config(config));
  const auto request = plan_request(config);
  const auto profile = machine_profile(config);
  Trace trace;
  const auto p = make_plan(config, model, request, profile, line.plan.trace.empty() ? nullptr : &trace);
  if (p.fits && !line.plan.trace.empty()) trace.write(line.plan.trace, "terrace plan");
  if (config.json) {
    fmt::print("{}\n", to_json(p).dump(2));
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
  fmt::print("updates run on the {}, prefetch depth {}\n\n", name_of(p.map.update_tier), p.prefetch_depth);
  fmt::print("{:<8} {:>12} {:>12} {:>16}\n", "tier", "budget", "peak", "smallest legal");
  const auto budget = budgets(config);
  for (const auto tier : kAllTiers) {
    if (tier == Tier::disk && config.nvme_path.empty()) continue;
    fmt::print("{:<8} {:>12} {:>12} {:>16}\n", name_of(tier), format_bytes(budget.of(tier)), format_bytes(p.peak_bytes[tier]),
               tier == Tier::disk ? "" : format_bytes(p.smallest_bytes[tier]));
  }
  fmt::print("\na step moves: disk read {}, disk write {}, upload {}, download {}\n", format_bytes(t.read),
             format_bytes(t.write), format_bytes(t.upload), format_bytes(t.download));
  fmt::print("step time {:.3f} s, of which compute {:.3f} s (the floor); {} binds\n", p.times.seconds, p.floor_s, p.binding);
  for (const auto& [cause, seconds] : p.times.stall_s) fmt::print("  stall by {}: {:.3f} s\n", cause, seconds);
  if (p.commits != 0)
    fmt::print("a commit writes {} in {:.3f} s; {} of them in this run, {} generation{} of the state on disk\n",
               format_bytes(p.commit_traffic.write), p.commit_seconds, p.commits, p.generations, p.generations == 1 ? "" : "s");
  if (profile.measured_at.empty())
    fmt::print("\nthe times rest on assumed rates: terrace doctor --measure takes this machine's own\n");
  return Exit::ok;
}

}  // namespace terrace::cli
