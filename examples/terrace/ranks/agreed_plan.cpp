#include <terrace/examples/terrace/ranks/agreed_plan.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/cli/refusal.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/pipeline_setup.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/init_from.h>
#include <terrace/parallel/train/agree_on_plan.h>

namespace terrace::cli {

AgreedPlan::AgreedPlan(const RunConfig& config)
    : config_(config),
      model_(lm::make_model(model_config(config))),
      first_weights_(cli::first_weights(config, model_)),
      profile_(machine_profile(config)),
      request_(plan_request(config)) {
  if (searches_schedule(config)) return;  // agree() sets the pipeline
  auto with_stages = config;
  if (config.parallel.pp > 1 && config.parallel.stage_layers.empty())
    with_stages.parallel.stage_layers = stage_layers_of_run(config);
  set_pipeline(request_, with_stages, model_, profile_);
}

void AgreedPlan::agree(Team& team) {
  if (auto* const ranks = team.agreement()) terrace::agree(*ranks, request_, profile_);
  if (searches_schedule(config_)) agree_on_schedule(team);
  request_.rank = static_cast<std::uint32_t>(team.rank());  // the search has planned for each stage in turn
}

// --schedule auto: the first rank takes the schedule of the resumed run, or else searches one, and all ranks take the same.
void AgreedPlan::agree_on_schedule(Team& team) {
  std::string text;
  team.together([&] {
    if (!team.first()) return;
    text = found_by_run(config_);
    schedule_was_recorded_ = !text.empty();
    if (schedule_was_recorded_) return;
    auto pool = make_pool(config_);
    set_pipeline(request_, config_, model_, profile_);
    const auto found = plans_of_ranks(request_, config_, model_, profile_, pool);
    text = found_to_text(found.name, *request_.pipeline);
  });
  found_schedule_ = team.of_first(std::move(text));
  schedule_was_recorded_ = team.any(schedule_was_recorded_);
  schedule_name_ = take_found(request_, model_, found_schedule_);
}

void AgreedPlan::make(const Team& team) {
  auto timed = config_;
  timed.plan.assumed_costs = timed.plan.assumed_costs || !team.first();
  plan_ = make_plan(timed, model_, request_, profile_);
  if (!plan_.fits && request_.pipeline) {
    auto pool = make_pool(config_);
    static_cast<void>(plans_of_ranks(request_, config_, model_, profile_, pool));  // throws an error for all stages
  }
  if (!plan_.fits) throw refusal_error(config_, plan_);
  program_hash_ = steady_hash(plan_);
  plan_ = for_rank(plan_, model_, request_, profile_);
}

void AgreedPlan::demand_same_steps(Team& team) const {
  auto* const ranks = team.agreement();
  const auto two = ranks ? different_programs(*ranks, program_hash_, mesh()) : std::nullopt;
  team.together([&] {
    if (two)
      throw base::Refused(fmt::format("ranks {} and {} have planned different steps\n  give all ranks the same flags",
                                      two->first, two->second));
  });
}

std::string AgreedPlan::describe() const {
  const auto rank_of = plan_.map.rank;
  const auto index = [&](AxisSet axes) { return mesh().index(rank_of, axes); };
  const auto process = [](const std::string& rank) { return rank.empty() ? fmt::format("process {}: ", getpid()) : rank; };
  constexpr auto kCopies = Axis::copy | Axis::shard;
  std::string rank;
  if (const auto ranks = mesh().size(kCopies); ranks > 1)
    rank = fmt::format("rank {} of {}, process {}, ZeRO-{}: ", index(kCopies), ranks, getpid(), plan_.map.data.zero);
  if (mesh().pp > 1)
    rank = fmt::format("pipeline rank {} of {}, {}, stages of {} layers: {}", index(Axis::pp), mesh().pp, schedule_name_,
                       stage_layers(*request_.pipeline), process(rank));
  if (const auto ranks = mesh().size(kTensorAxes); ranks > 1)
    rank = fmt::format("tensor rank {} of {}{}, {}", index(kTensorAxes), ranks,
                       model_.place.sequence ? " with sequence parallelism" : "", process(rank));
  if (mesh().context > 1) rank = fmt::format("context rank {} of {}, {}", index(Axis::context), mesh().context, process(rank));
  if (mesh().expert > 1) rank = fmt::format("expert rank {} of {}, {}", index(Axis::expert), mesh().expert, process(rank));
  return fmt::format(
      "{}{}{} with {:.1f}M parameters, {} of state ({}, {}); device {}, host {}, disk {}; updates on {}, bound by {}", rank,
      *config_.model.family.get().name, tiles_in_words(config_), static_cast<double>(plan_.parameters) * 1e-6,
      format_bytes(plan_.state_bytes), config_.train.optimizer, config_.train.recipe, format_bytes(plan_.capacity.device),
      format_bytes(plan_.capacity.host), plan_.capacity.commit_only ? "for commits only" : format_bytes(plan_.capacity.disk),
      in_words(plan_.map.update), plan_.binding);
}

nlohmann::json AgreedPlan::to_json(Team& team) const {
  auto json = cli::to_json(config_, plan_);
  if (team.size() == 1) return json;
  auto walked = json.at("walked").at("bytes");
  for (auto& [edge, bytes] : walked.items()) bytes = team.sum(bytes.get<std::uint64_t>());
  auto peaks = json.at("peak_bytes");
  for (auto& [tier, bytes] : peaks.items()) bytes = team.max(bytes.get<std::uint64_t>());
  const auto steps = team.each(static_cast<double>(plan_.step_traffic.size()));
  json["peak_bytes"] = json["ranks"]["peak_bytes"] = peaks;
  if (std::ranges::min(steps) == std::ranges::max(steps)) json["ranks"]["walked_bytes"] = walked;
  return json;
}

}  // namespace terrace::cli
