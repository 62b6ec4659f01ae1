#include <terrace/examples/terrace/plan_search.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <tuple>

#include <terrace/core/thread_pool.h>
#include <terrace/examples/lm/model.h>
#include <terrace/examples/terrace/choose_tiles.h>
#include <terrace/examples/terrace/device.h>
#include <terrace/examples/terrace/pipeline_setup.h>
#include <terrace/examples/terrace/plan_pipeline.h>
#include <terrace/examples/terrace/ranks.h>
#include <terrace/examples/terrace/setup.h>

namespace terrace::cli {
namespace {

TensorGrid grid_in(const RunConfig& c) {
  return grid_of(parse_tensor_mode(c.tp_mode), static_cast<std::uint32_t>(c.tp), static_cast<std::uint32_t>(c.tp_depth))
      .value_or(TensorGrid{});
}

// The same numbers of ranks with the tensor ranks in a row, and in every grid. More grids than a side has ranks only cost
// memory.
void add_modes(std::vector<RunConfig>& all, RunConfig c) {
  for (const auto* const mode : {"1d", "2d", "2.5d", "3d"})
    for (std::int64_t depth = 1; depth * depth * depth <= c.tp; ++depth) {
      if ((mode == std::string_view("2.5d")) != (depth > 1)) continue;
      c.tp_mode = mode;
      c.tp_depth = depth;
      const bool row = mode == std::string_view("1d");
      if (!row && grid_in(c).side == 1) continue;
      c.sp = row && c.tp > 1;
      all.push_back(c);
    }
}

// Data, pipeline and tensor ranks. A tensor group stays on one node. Context ranks are as given.
std::vector<RunConfig> products(const RunConfig& given, const SearchSpace& space) {
  const auto ranks = space.ranks / given.cp, on_node = space.ranks_per_node / given.cp;
  std::vector<RunConfig> all;
  for (std::int64_t tp = 1; tp <= on_node; ++tp) {
    if (on_node % tp != 0 || ranks % tp != 0) continue;
    for (std::int64_t pp = 1; pp <= ranks / tp; ++pp) {
      if (ranks / tp % pp != 0) continue;
      auto c = given;
      c.tp = tp;
      c.pp = pp;
      c.dp = ranks / tp / pp;
      c.schedule = pp == 1 ? "1f1b" : given.schedule;
      add_modes(all, c);
    }
  }
  return all;
}

// Whether a run would accept it.
bool is_legal(const RunConfig& c) try {
  demand_degrees(c, static_cast<int>(c.ranks()));
  return true;
} catch (const Error&) {
  return false;
}

// Sequence parallelism costs no bytes and saves activations: it is left out only where the tokens do not divide.
std::optional<RunConfig> legal(RunConfig c) {
  const auto grid = grid_in(c);
  const bool divides = c.batch_size * c.seq_len % c.tp == 0;
  if (grid.side > 1 && (!divides || c.batch_size % (std::int64_t{grid.depth} * grid.side) != 0)) return std::nullopt;
  if (!divides) c.sp = false;
  if (!c.sp) c.tp_overlap = 1;
  return is_legal(c) ? std::optional(c) : std::nullopt;
}

void take(FoundPlan& found, const Plan& plan) {
  for (const auto tier : kAllTiers) found.peak[tier] = std::max(found.peak[tier], plan.peak_bytes[tier]);
}

void refuse(FoundPlan& found, const Plan& plan) {
  if (plan.refusal.missing_bytes < found.missing_bytes) return;
  found.missing_bytes = plan.refusal.missing_bytes;
  found.refusal = fmt::format("{} more {} memory", format_bytes(plan.refusal.missing_bytes), name_of(plan.refusal.tier));
}

FoundPlan planned(const RunConfig& given, const MachineProfile& profile) {
  const auto config = with_chosen_tiles(given);
  FoundPlan found{.config = config};
  const auto model = lm::make_model(model_config(config));
  auto request = plan_request(config);
  ThreadPool alone(1);
  std::vector<Plan> plans;
  if (searches_schedule(config)) {
    plans = search_schedule(request, config, model, profile, alone).plans;
  } else {
    set_pipeline(request, config, model, profile);
    const auto mesh = mesh_of(model, request);
    for (std::uint32_t stage = 0; stage < mesh.pp; ++stage) {
      request.rank = first_rank(model, request, stage);
      plans.push_back(plan(model, request, profile, &alone));
      if (!plans.back().fits) refuse(found, plans.back());
    }
    if (!found.refusal.empty()) return found;
  }
  for (const auto& plan : plans) take(found, plan);
  const auto& slowest = *std::ranges::max_element(plans, {}, [](const Plan& p) { return p.times.seconds; });
  found.binding = slowest.link.empty() ? slowest.binding : fmt::format("{} ({})", slowest.binding, slowest.link);
  found.step_s = config.pp == 1 ? plans.front().times.seconds : step_of_pipeline(request, plans, model, profile);
  return found;
}

FoundPlan tried(const RunConfig& config, const MachineProfile& profile) try {
  return planned(config, profile);
} catch (const Error& error) {  // no schedule fits, or no walk does
  const std::string why = error.what();
  return {.config = config, .refusal = why.substr(0, why.find('\n')), .missing_bytes = kUnlimited};
}

nlohmann::json to_json(const FoundPlan& found) {
  const auto& c = found.config;
  nlohmann::json j{{"flags", flags_of(c)}, {"dp", c.dp},           {"pp", c.pp},     {"tp", c.tp},
                   {"sp", c.sp},           {"tp_mode", c.tp_mode}, {"zero", c.zero}, {"fits", found.step_s != 0}};
  if (found.step_s == 0) {
    j["refusal"] = found.refusal;
    return j;
  }
  j["step_time_s"] = found.step_s;
  j["binding"] = found.binding;
  for (const auto tier : kAllTiers) j["peak_bytes"][std::string(name_of(tier))] = found.peak[tier];
  return j;
}

}  // namespace

std::string flags_of(const RunConfig& c) {
  auto flags = fmt::format("--dp {}", c.dp);
  if (c.pp > 1) flags += fmt::format(" --pp {} --schedule {}", c.pp, c.schedule);
  if (c.tp > 1) flags += fmt::format(" --tp {}{}", c.tp, c.sp ? " --sp" : "");
  if (c.tp_mode != "1d") flags += fmt::format(" --tp-mode {}", c.tp_mode);
  if (c.tp_depth > 1) flags += fmt::format(" --tp-depth {}", c.tp_depth);
  if (c.cp > 1) flags += fmt::format(" --cp {}", c.cp);
  if (c.ring() > 1) flags += fmt::format(" --cp-mode {}", c.cp_mode);
  if (c.ring() > 1 && c.cp_mode == "both") flags += fmt::format(" --cp-ring {}", c.cp_ring);
  return flags + fmt::format(" --zero {} --grad-accumulation {}", c.zero, c.grad_accumulation);
}

std::vector<RunConfig> candidates(const RunConfig& given, const SearchSpace& space) {
  std::vector<RunConfig> all;
  for (auto c : products(given, space)) {
    const auto of_rank = c.batch_size * c.dp;
    if (space.sequences % of_rank != 0) continue;
    c.grad_accumulation = space.sequences / of_rank;
    const auto candidate = legal(space.complete(c));
    for (std::int64_t zero = 0; candidate && zero <= (candidate->dp * candidate->cp > 1 ? 3 : 0); ++zero) {
      all.push_back(*candidate);
      all.back().zero = zero;
    }
  }
  return all;
}

std::vector<FoundPlan> search_plans(const RunConfig& given, const SearchSpace& space, const MachineProfile& profile) {
  const auto all = candidates(given, space);
  std::vector<FoundPlan> found(all.size());
  auto pool = make_pool(given);
  pool.parallel_for(static_cast<std::int64_t>(all.size()), [&](std::int64_t i) {
    const auto n = static_cast<std::size_t>(i);
    found[n] = tried(all[n], profile);
  });
  std::ranges::stable_sort(found, {}, [](const FoundPlan& f) { return std::tuple(f.step_s == 0, f.step_s, f.missing_bytes); });
  return found;
}

Exit plan_search(const RunConfig& given, const SearchSpace& space, const MachineProfile& profile, std::int64_t shown) {
  const auto found = search_plans(given, space, profile);
  if (found.empty())
    throw Error(fmt::format("no product of --dp, --pp and --tp is legal for {} ranks and {} sequences a step\n  give another "
                            "--batch-size or --grad-accumulation, so that more numbers of data ranks divide the sequences",
                            space.ranks, space.sequences),
                Exit::usage);
  const auto fitting = static_cast<std::int64_t>(std::ranges::count_if(found, [](const auto& f) { return f.step_s != 0; }));
  if (given.json) {
    auto plans = nlohmann::json::array();
    for (const auto& f : found) plans.push_back(to_json(f));
    fmt::print("{}\n", nlohmann::json{{"ranks", space.ranks}, {"sequences", space.sequences}, {"plans", plans}}.dump(2));
    return fitting == 0 ? Exit::does_not_fit : Exit::ok;
  }
  if (fitting == 0)
    throw Error(fmt::format("none of the {} legal products fits; the nearest lacks {}\n  {}", found.size(),
                            found.front().refusal, flags_of(found.front().config)),
                Exit::does_not_fit);
  fmt::print("{} ranks, {} on each node, {} sequences of {} positions a step: {} ways are legal, {} fit\n\n", space.ranks,
             space.ranks_per_node, space.sequences, given.seq_len, found.size(), fitting);
  fmt::print("{:>9} {:>8} {:>11} {:>11} {:>11}  {:<20} {}\n", "step", "slower", "device", "host", "disk", "bound by", "flags");
  const double best_s = found.front().step_s;
  for (std::int64_t i = 0; i < std::min(shown, fitting); ++i) {
    const auto& f = found[static_cast<std::size_t>(i)];
    const auto slower = i == 0 ? std::string() : fmt::format("{:.1f} %", 100 * (f.step_s / best_s - 1));
    fmt::print("{:>7.3g} s {:>8} {:>11} {:>11} {:>11}  {:<20} {}\n", f.step_s, slower, format_bytes(f.peak[Tier::device]),
               format_bytes(f.peak[Tier::host]), format_bytes(f.peak[Tier::disk]), f.binding, flags_of(f.config));
  }
  if (fitting < static_cast<std::int64_t>(found.size())) {
    const auto& nearest = found[static_cast<std::size_t>(fitting)];
    fmt::print("\nof those that do not fit, the nearest lacks {}: {}\n", nearest.refusal, flags_of(nearest.config));
  }
  return Exit::ok;
}

}  // namespace terrace::cli
