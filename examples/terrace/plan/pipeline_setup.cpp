#include <terrace/examples/terrace/plan/pipeline_setup.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/cli/refusal.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/simulate.h>

namespace terrace::cli {
namespace {

// Reads a schedule from a file and checks it.
pipeline::Schedule schedule_from(const RunConfig& c) {
  const auto refuse = [&](const std::string& why) {
    throw base::Refused(fmt::format("--schedule {}: {}", c.parallel.schedule, why));
  };
  pipeline::Schedule s;
  try {
    s = pipeline::parse_schedule(read_text_file(c.parallel.schedule));
    pipeline::simulate(s, {});
  } catch (const Error& error) {
    refuse(fmt::format(
        "{}\n  docs/concepts/pipeline.md describes the format, and terrace plan --write-schedule writes such a file",
        error.what()));
  }
  const auto each = s.asynchronous() ? s.update_every : s.micro_batches;
  if (s.placement.ranks != static_cast<std::uint32_t>(c.parallel.pp) ||
      each != static_cast<std::uint32_t>(c.train.grad_accumulation))
    refuse(fmt::format("the file is for {} ranks and {} micro-batches\n  give --pp {} --grad-accumulation {}",
                       s.placement.ranks, each, s.placement.ranks, each));
  if (s.asynchronous() && s.micro_batches / each != static_cast<std::uint32_t>(c.parallel.drain_interval))
    refuse(
        fmt::format("the schedule in the file drains after {0} updates\n  give --drain-interval {0}", s.micro_batches / each));
  return s;
}

pipeline::Schedule named_or_from_file(const RunConfig& c) {
  std::vector<std::string_view> names;
  for (const auto& order : pipeline::all_orders()) names.push_back(order.name);
  const bool named = std::ranges::find(names, c.parallel.schedule) != names.end();
  if (!named && std::filesystem::is_regular_file(c.parallel.schedule)) return schedule_from(c);
  if (!named)
    throw base::Refused(
        fmt::format("--schedule: \"{}\" is neither a schedule nor a file{}\n  give --schedule auto, one of {}, or a file "
                    "that terrace plan --write-schedule wrote",
                    c.parallel.schedule, suggestion(c.parallel.schedule, names), fmt::join(names, ", ")));
  const auto ranks = static_cast<std::uint32_t>(c.parallel.pp);
  const auto chunks = static_cast<std::uint32_t>(c.parallel.virtual_stages);
  auto schedule =
      pipeline::write_order(c.parallel.schedule, {.ranks = ranks,
                                                  .micro_batches = static_cast<std::uint32_t>(c.train.grad_accumulation),
                                                  .chunks = chunks == 0 ? 2 : chunks,
                                                  .updates = static_cast<std::uint32_t>(c.parallel.drain_interval)});
  if (chunks != 0 && schedule.placement.stages != chunks * ranks)
    throw base::Refused(
        fmt::format("--virtual-stages {}: with --schedule {} each rank has {}\n  leave --virtual-stages out, or give "
                    "--schedule interleaved, which takes any number",
                    chunks, c.parallel.schedule, schedule.placement.stages / ranks));
  return schedule;
}

void demand_no_order(const RunConfig& c) {
  if (c.plan.order && c.plan.order != Order::horizontal)
    throw base::Refused(fmt::format("--order {}: a pipeline computes in the order of its --schedule\n  leave --order out",
                                    word_of(c.plan.order)));
}

std::vector<std::uint32_t> begins_of(const std::string& text, std::uint32_t stages, std::uint32_t layers) {
  std::vector<std::uint32_t> begins{0};
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  for (bool more = true; good && more; ++at) {
    std::uint32_t count = 0;
    const auto [next, error] = std::from_chars(at, end, count);
    more = next != end;
    good = error == std::errc{} && (!more || *next == ',') && count <= layers - begins.back();
    begins.push_back(begins.back() + count);
    at = next;
  }
  if (!good || begins.size() != stages + 1 || begins.back() != layers)
    throw base::Refused(fmt::format(
        "--stage-layers {} does not divide {} layers into {} stages\n  give one number for each stage, which together "
        "add up to {} (the embedding, two for each block, and the head), or leave --stage-layers out",
        text, layers, stages, layers));
  return begins;
}

// A rank without layers would only wait. Such stages are accepted only from a resumed run that began with them, balanced over
// more stages than layers.
void demand_layers_on_every_rank(const RunConfig& c, const pipeline::Pipeline& p) {
  if (c.parallel.stage_layers.empty() || c.parallel.stage_layers == stage_layers_of_run(c)) return;
  for (std::uint32_t rank = 0; rank < p.schedule.placement.ranks; ++rank) {
    bool holds = false;
    for (const auto& rank_of : p.schedule.placement.rank_of)
      for (std::size_t stage = 0; stage < rank_of.size(); ++stage)
        holds = holds || (rank_of[stage] == rank && p.begins[stage] != p.begins[stage + 1]);
    if (!holds)
      throw base::Refused(
          fmt::format("--stage-layers {} leaves rank {} of the pipeline without a layer\n  give each rank at least one "
                      "layer, or a smaller --pp",
                      c.parallel.stage_layers, rank));
  }
}

// With an asynchronous schedule, evaluations, commits and the end of the run are possible only where it drains.
void demand_drained(const RunConfig& c) {
  const auto refuse = [&](const std::string& what, const std::string& mend) {
    throw base::Refused(fmt::format("--schedule {}: {}\n  {}", c.parallel.schedule, what, mend));
  };
  const auto whole = [&](std::int64_t steps, const char* flag) {
    if (steps % c.parallel.drain_interval == 0) return;
    const auto below = steps / c.parallel.drain_interval * c.parallel.drain_interval;
    refuse(
        fmt::format("{} {} is not a multiple of --drain-interval {}, and between two drains the ranks are at different steps",
                    flag, steps, c.parallel.drain_interval),
        fmt::format("give {} {}, or another --drain-interval", flag,
                    below == 0 ? fmt::format("{}", c.parallel.drain_interval)
                               : fmt::format("{} or {}", below, below + c.parallel.drain_interval)));
  };
  whole(c.train.steps, "--steps");
  whole(c.train.eval_interval, "--eval-interval");
  whole(c.run.ckpt_interval, "--ckpt-interval");
  if (c.run.durability == Durability::step && c.parallel.drain_interval != 1)
    refuse(fmt::format("--durability step commits every step, but the schedule drains only every {} steps",
                       c.parallel.drain_interval),
           fmt::format("give --durability commit --ckpt-interval {}, or --drain-interval 1", c.parallel.drain_interval));
  if (c.train.on_non_finite == NonFinite::skip || loss_scale(c).dynamic())
    refuse("it applies a step while it computes the next one, so no step can be skipped",
           "give --on-non-finite stop, and --loss-scale off or a power of two");
}

}  // namespace

pipeline::Schedule schedule_of(const RunConfig& c) { return named_or_from_file(c); }

void set_pipeline(PlanRequest& request, const RunConfig& c, const Model& model, const MachineProfile& profile) {
  if (searches_schedule(c)) {
    demand_no_order(c);
    if (!c.parallel.stage_layers.empty() || c.parallel.virtual_stages != 0)
      throw base::Refused("--schedule auto chooses the stages, too\n  leave out --stage-layers and --virtual-stages");
    return;
  }
  if (c.parallel.pp <= 1) {
    if (!c.parallel.stage_layers.empty() || c.parallel.virtual_stages != 0)
      throw base::Refused(
          "--stage-layers and --virtual-stages divide a pipeline into stages, and there is no pipeline\n  add --pp, the "
          "number of its ranks, or leave them out");
    return;
  }
  demand_no_order(c);
  auto schedule = schedule_of(c);
  if (schedule.asynchronous()) demand_drained(c);
  const auto stages = schedule.placement.stages;
  auto begins = c.parallel.stage_layers.empty()
                    ? planning::balanced_stages(request, model, schedule, profile)
                    : begins_of(c.parallel.stage_layers, stages, static_cast<std::uint32_t>(model.layers.size()));
  pipeline::Pipeline pipeline{std::move(schedule), std::move(begins)};
  demand_layers_on_every_rank(c, pipeline);
  if (pipeline.schedule.asynchronous()) request.updates_before_use = c.train.grad_clip > 0;
  terrace::planning::set_pipeline(request, std::move(pipeline));
}

bool searches_schedule(const RunConfig& c) { return c.parallel.pp > 1 && c.parallel.schedule == "auto"; }

planning::FoundSchedule plans_of_ranks(PlanRequest& request, const RunConfig& c, const Model& model,
                                       const MachineProfile& profile, ThreadPool& pool) {
  auto found = request.pipeline
                   ? planning::FoundSchedule{c.parallel.schedule, planning::plan_ranks(request, model, profile, pool)}
                   : planning::search_schedule(request, model, profile, pool);
  if (!std::ranges::all_of(found.plans, &Plan::fits)) throw refusal_error(c, found.plans);
  return found;
}

namespace {

constexpr std::string_view kNameLine = "# schedule: ", kStagesLine = "# stage-layers: ";

std::string value_of(const std::string& text, std::string_view line) {
  const auto at = text.find(line);
  if (at == std::string::npos) return "";
  const auto begin = at + line.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

std::string found_to_text(const std::string& name, const pipeline::Pipeline& p) {
  return fmt::format("{}{}\n{}{}\n{}", kNameLine, name, kStagesLine, stage_layers(p), to_text(p.schedule));
}

std::string take_found(PlanRequest& request, const Model& model, const std::string& text) {
  auto schedule = pipeline::parse_schedule(text);
  const auto stages = schedule.placement.stages;
  request.pipeline = {std::move(schedule),
                      begins_of(value_of(text, kStagesLine), stages, static_cast<std::uint32_t>(model.layers.size()))};
  return value_of(text, kNameLine);
}

std::string found_by_run(const RunConfig& c) {
  const auto dir = run_resumed(c);
  if (dir.empty() || !std::filesystem::exists(dir / kScheduleFile)) return "";
  RunConfig then;
  apply_file(then, dir / kConfigFile);
  if (!searches_schedule(then) || then.parallel.pp != c.parallel.pp || then.model.layers != c.model.layers) return "";
  try {
    auto text = read_text_file(dir / kScheduleFile);
    const auto schedule = pipeline::parse_schedule(text);
    return schedule.micro_batches == static_cast<std::uint32_t>(c.train.grad_accumulation) ? text : "";
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}\n  bring the file back, or give another --schedule than auto",
                            (dir / kScheduleFile).string(), error.what()),
                ErrorKind::corrupt);
  }
}

std::string stage_layers(const pipeline::Pipeline& p) {
  std::vector<std::uint32_t> counts;
  for (std::size_t s = 0; s + 1 < p.begins.size(); ++s) counts.push_back(p.begins[s + 1] - p.begins[s]);
  return fmt::format("{}", fmt::join(counts, ","));
}

std::string stage_layers_of_run(const RunConfig& c) {
  const auto dir = run_resumed(c);
  if (dir.empty()) return "";
  RunConfig then;
  apply_file(then, dir / kConfigFile);
  const bool same = then.parallel.pp == c.parallel.pp && then.parallel.schedule == c.parallel.schedule &&
                    then.parallel.virtual_stages == c.parallel.virtual_stages;
  return same ? then.parallel.stage_layers : "";
}

}  // namespace terrace::cli
