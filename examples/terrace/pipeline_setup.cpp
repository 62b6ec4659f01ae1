#include <terrace/examples/terrace/pipeline_setup.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <vector>

#include <terrace/core/error.h>
#include <terrace/core/text_file.h>
#include <terrace/examples/terrace/command_line.h>
#include <terrace/examples/terrace/options.h>
#include <terrace/examples/terrace/setup.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/pipeline/stage_costs.h>

namespace terrace::cli {
namespace {

// An order that somebody wrote, proved.
pipeline::Schedule schedule_from(const RunConfig& c) {
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("--schedule {}: {}", c.schedule, why), Exit::usage);
  };
  pipeline::Schedule s;
  try {
    s = pipeline::parse_schedule(read_text_file(c.schedule));
    pipeline::simulate(s, {});
  } catch (const Error& error) {
    refuse(fmt::format("{}\n  docs/pipeline.md has the form, and terrace plan --write-schedule writes one", error.what()));
  }
  const auto each = s.asynchronous() ? s.update_every : s.micro_batches;
  if (s.placement.ranks != static_cast<std::uint32_t>(c.pp) || each != static_cast<std::uint32_t>(c.grad_accumulation))
    refuse(fmt::format("it is for {} ranks and {} micro-batches\n  give --pp {} --grad-accumulation {}", s.placement.ranks,
                       each, s.placement.ranks, each));
  if (s.asynchronous() && s.micro_batches / each != static_cast<std::uint32_t>(c.drain_interval))
    refuse(fmt::format("it drains after {0} updates\n  give --drain-interval {0}", s.micro_batches / each));
  return s;
}

pipeline::Schedule schedule_of(const RunConfig& c) {
  std::vector<std::string_view> names;
  for (const auto& order : pipeline::all_orders()) names.push_back(order.name);
  if (c.schedule == "auto")
    throw Error(
        "--schedule auto: terrace plan searches, and a run is told what was found\n  terrace plan --schedule auto "
        "--write-schedule FILE, then --schedule FILE",
        Exit::usage);
  const bool named = std::ranges::find(names, c.schedule) != names.end();
  if (!named && std::filesystem::is_regular_file(c.schedule)) return schedule_from(c);
  if (!named)
    throw Error(fmt::format("--schedule \"{}\" is no order of a pipeline{}\n  choose one of {}, or give the file of one",
                            c.schedule, suggestion(c.schedule, names), fmt::join(names, ", ")),
                Exit::usage);
  const auto ranks = static_cast<std::uint32_t>(c.pp);
  const auto chunks = static_cast<std::uint32_t>(c.virtual_stages);
  auto schedule = pipeline::write_order(c.schedule, {.ranks = ranks,
                                                     .micro_batches = static_cast<std::uint32_t>(c.grad_accumulation),
                                                     .chunks = chunks == 0 ? 2 : chunks,
                                                     .updates = static_cast<std::uint32_t>(c.drain_interval)});
  if (chunks != 0 && schedule.placement.stages != chunks * ranks)
    throw Error(fmt::format("--virtual-stages {}: with --schedule {} a rank has {}\n  leave it out, or choose --schedule "
                            "interleaved, which takes any number",
                            chunks, c.schedule, schedule.placement.stages / ranks),
                Exit::usage);
  return schedule;
}

std::vector<std::uint32_t> begins_of(const std::string& text, std::uint32_t stages, std::uint32_t layers) {
  std::vector<std::uint32_t> begins{0};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::uint32_t count = 0; at < end; ++at) {
    const auto [next, error] = std::from_chars(at, end, count);
    if (error != std::errc{} || count > layers || (next != end && *next != ',')) break;
    begins.push_back(begins.back() + count);
    at = next;
    if (at == end) break;
  }
  if (at != end || begins.size() != stages + 1 || begins.back() != layers)
    throw Error(
        fmt::format("--stage-layers {} is not how {} layers are cut into {} stages\n  give a number for each stage that "
                    "add up to {}: the embedding, two for each block, and the head; or leave it out",
                    text, layers, stages, layers),
        Exit::usage);
  return begins;
}

// Whatever happens between two steps happens where the order drains.
void demand_drained(const RunConfig& c) {
  const auto refuse = [&](const std::string& what, const std::string& mend) {
    throw Error(fmt::format("--schedule {}: {}\n  {}", c.schedule, what, mend), Exit::usage);
  };
  const auto whole = [&](std::int64_t steps, const char* flag) {
    if (steps % c.drain_interval == 0) return;
    const auto below = steps / c.drain_interval * c.drain_interval;
    refuse(fmt::format("{} {} is not a multiple of --drain-interval {}, and in between the ranks are at different steps", flag,
                       steps, c.drain_interval),
           fmt::format(
               "give {} {}, or another --drain-interval", flag,
               below == 0 ? fmt::format("{}", c.drain_interval) : fmt::format("{} or {}", below, below + c.drain_interval)));
  };
  whole(c.steps, "--steps");
  whole(c.eval_interval, "--eval-interval");
  whole(c.ckpt_interval, "--ckpt-interval");
  if (c.durability == "step" && c.drain_interval != 1)
    refuse("--durability step commits every step, and the order drains every " + std::to_string(c.drain_interval),
           "give --durability commit with a --ckpt-interval");
  if (c.on_non_finite == "skip" || loss_scale(c).dynamic())
    refuse("a step is applied while the next one is computed, and cannot be left out",
           "give --on-non-finite stop, and --loss-scale off or a power of two");
}

// A step of the engine is as many of the run's as the order takes until it drains.
void take_together(PlanRequest& request, const RunConfig& c) {
  const auto updates = static_cast<std::uint64_t>(c.drain_interval);
  request.shape.micro_batches = request.pipeline->schedule.micro_batches;
  request.updates_before_use = c.grad_clip > 0;
  if (request.data.ranks == 1) request.data.canonical = false;  // one rank's sums are
  for (auto* const steps : {&request.steps, &request.evaluate_every, &request.commit_every}) *steps /= updates;
}

}  // namespace

std::uint64_t updates_a_step(const PlanRequest& request) {
  if (!request.pipeline || !request.pipeline->schedule.asynchronous()) return 1;
  return request.pipeline->schedule.micro_batches / request.pipeline->schedule.update_every;
}

void set_pipeline(PlanRequest& request, const RunConfig& c, const Model& model, const MachineProfile& profile) {
  if (c.pp <= 1) {
    if (!c.stage_layers.empty() || c.virtual_stages != 0)
      throw Error("--stage-layers and --virtual-stages say how a pipeline is cut\n  add --pp, the number of its ranks",
                  Exit::usage);
    return;
  }
  if (c.order != "horizontal" && c.order != "auto")
    throw Error(fmt::format("--order {}: a pipeline computes in the order of its --schedule\n  leave it out", c.order),
                Exit::usage);
  auto schedule = schedule_of(c);
  if (schedule.asynchronous()) demand_drained(c);
  const auto stages = schedule.placement.stages;
  auto begins =
      c.stage_layers.empty()
          ? pipeline::balance(pipeline::layer_costs(model,
                                                    {.recipe = Recipe::of(model.dtype, request.recipe, request.states),
                                                     .shape = {request.shape.batch, 1}},
                                                    profile),
                              stages)
          : begins_of(c.stage_layers, stages, static_cast<std::uint32_t>(model.layers.size()));
  request.pipeline = {std::move(schedule), std::move(begins)};
  if (request.pipeline->schedule.asynchronous()) take_together(request, c);
  static_cast<void>(pipeline::part_of(*request.pipeline, 0));  // refuses what no rank can execute
}

std::string stage_layers(const pipeline::Pipeline& p) {
  std::vector<std::uint32_t> counts;
  for (std::size_t s = 0; s + 1 < p.begins.size(); ++s) counts.push_back(p.begins[s + 1] - p.begins[s]);
  return fmt::format("{}", fmt::join(counts, ","));
}

std::string stage_layers_of_run(const RunConfig& c) {
  const auto dir = c.resume == "auto" || c.resume == "never" ? c.out_dir : std::filesystem::path(c.resume);
  if (c.resume == "never" || !std::filesystem::exists(dir / kConfigFile)) return "";
  RunConfig then;
  apply_file(then, dir / kConfigFile);
  const bool same = then.pp == c.pp && then.schedule == c.schedule && then.virtual_stages == c.virtual_stages;
  return same ? then.stage_layers : "";
}

}  // namespace terrace::cli
