#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/base/environment.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/plan/setup.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/philox.h>
#include <terrace/examples/lm/models/activation_name.h>
#include <terrace/examples/lm/models/adapters.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/cli/refusal.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/config/setting_flags.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/run/init_from.h>
#include <terrace/optimizers/precision_warnings.h>
#include <terrace/parallel/map/parameter_layout.h>
#include <terrace/parallel/mesh/degrees.h>
#include <terrace/parallel/model/freeze.h>
#include <terrace/parallel/run/measure_costs.h>

namespace terrace::cli {
namespace {

// The first rank with the same part of the layers, positions and experts; their axes are the innermost ones.
std::uint32_t first_with_parts(const RunConfig& c, const Mesh& mesh) {
  return static_cast<std::uint32_t>(c.found.rank) % mesh.size(kPartAxes | Axis::context);
}

ModelRank place_of(const RunConfig& c) {
  const auto& p = c.parallel;
  const auto mesh = mesh_of(c);
  return {.mesh = mesh,
          .rank = first_with_parts(c, mesh),
          .sequence = p.sp || mesh.row > 1,  // the ranks of a grid share the rows
          .pieces = static_cast<std::uint32_t>(p.tp_overlap),
          .cube = p.tp_mode == TensorMode::cube,
          .ring = static_cast<std::uint32_t>(p.ring()),
          .two_rings = p.cp > 1 && p.cp_mode == ContextMode::two_rings};
}

// The option's function has gates if the family's has.
std::optional<Activation> activation_of(const lm::ModelConfig& model) {
  if (!model.activation) return std::nullopt;
  const auto& family = model.family.get();
  const auto name = lm::name_of(*model.activation);
  const auto kind = lm::activation_named(name, inputs_of(*family.activation));
  if (!kind)
    throw base::Refused(fmt::format(
        "--activation {}: {} has an MLP without gates, which has another function\n  give gelu, gelu_pytorch_tanh or usual",
        name, *family.name));
  return kind;
}

}  // namespace

Degrees degrees_of(const RunConfig& c) {
  const auto& p = c.parallel;
  return {.dp = static_cast<int>(std::max<std::int64_t>(1, p.dp)),
          .pp = static_cast<int>(p.pp),
          .tp = static_cast<int>(p.tp),
          .cp = static_cast<int>(p.cp),
          .ep = static_cast<int>(p.ep),
          .tensor_mode = p.tp_mode,
          .tensor_depth = static_cast<int>(p.tp_depth),
          .shard_group = static_cast<int>(p.dp == 0 ? 0 : p.shard_group)};  // it divides a number that is not known yet
}

Mesh mesh_of(const RunConfig& c) { return mesh_of(degrees_of(c), c.model.kv_heads); }

lm::ModelConfig model_config(const RunConfig& c) {
  auto model = c.model;
  model.activation = activation_of(model);
  model.adapters =
      lm::adapters_of(model.family, model.experts.count > 0, c.train.lora_rank, c.train.lora_alpha, c.train.lora_targets);
  model.place = place_of(c);
  return lm::complete(std::move(model));
}

bool units_apart(const RunConfig& c) {
  return mapping::ParameterLayout(lm::make_model(model_config(c)), {}, memory::Layout::kUnitElements, 1).cuts_units();
}

Budget budgets(const RunConfig& c) {
  // The CPU device and the host share the same memory: each gets a part of one half. With a GPU the host gets all of it.
  const auto available = memory_for_budgets(c);
  Budget b;
  // The ranks of a machine divide its host memory and disks. A given device budget is that of each rank.
  const auto sharing = ranks_of_machine(c);
  const auto share = [&](std::uint64_t bytes) { return bytes == kUnlimited ? bytes : bytes / sharing; };
  const auto device_share = !c.on_gpu() ? sharing : 1;
  b.device = resolve_bytes(c.memory.device_memory, c.memory.device_memory == "auto" ? usual_device_bytes(c) / device_share : 0);
  b.host = share(resolve_bytes(c.memory.host_memory, (!c.on_gpu() ? available / 2 : available) / 100 * 85));
  b.disk = c.memory.nvme_path.empty() ? 0 : share(resolve_bytes(c.memory.nvme_limit, kUnlimited));
  return b;
}

std::uint64_t memory_for_budgets(const RunConfig& c) {
  constexpr std::uint64_t kProgramBytes = 48 * kMiB, kRankBytes = 24 * kMiB;
  const auto available = read_topology().available_memory_bytes;
  return available - std::min(available, kProgramBytes + ranks_of_machine(c) * kRankBytes);
}

std::uint64_t ranks_of_machine(const RunConfig& c) {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(1, c.found.local_ranks != 0 ? c.found.local_ranks : c.parallel.ranks()));
}

void set_optimizer(PlanRequest& request, const RunConfig& c) {
  const auto optimizer = optimizer_of(c);
  request.states = optimizer->states();
  request.layer_unit = optimizer->layer_unit();
  request.param_groups = parse_param_groups(c.train.param_groups);
  request.freeze = model::parse_freeze(c.train.freeze);
}

PlanRequest plan_request(const RunConfig& c) {
  PlanRequest r{.shape = {.batch = {c.train.batch_size, c.model.seq_len / c.parallel.cp},
                          .micro_batches = static_cast<std::uint32_t>(c.train.grad_accumulation)},
                .budget = budgets(c),
                .recipe = c.train.recipe,
                .disk_tier = !c.memory.nvme_path.empty()};
  set_optimizer(r, c);
  r.order = c.plan.order == Order::vertical && c.plan.group > 0 ? Order::group_vertical : c.plan.order;
  r.group = static_cast<std::uint32_t>(c.plan.group);
  r.recompute = c.plan.recompute;
  r.offload = c.plan.activations;
  r.update = c.plan.update;
  // The clip factor, and whether a step is skipped, are known only after the backward.
  r.updates_before_use = Trainer::needs_norm(c.train.grad_clip, c.train.on_non_finite, loss_scale(c), r.param_groups);
  r.deferred = c.plan.deferred_updates;
  r.early = c.plan.early_updates;
  r.prefetch_depth = c.plan.prefetch_depth.value_or(kAutoDepth);
  r.steps = static_cast<std::uint64_t>(c.train.steps);
  r.evaluate_every = static_cast<std::uint64_t>(c.train.eval_interval);
  r.evaluate_batches = evaluated_batches(c);
  r.evaluate_first = c.train.eval_first;
  r.commit_every = commit_interval(c);
  r.commits_beside = r.commit_every != 0 && c.run.durability == Durability::commit;
  r.visits = c.run.save.empty() ? 1 : 2;
  r.average_every = c.parallel.sync_interval > 1 ? static_cast<std::uint64_t>(c.parallel.sync_interval) : 0;
  r.generations = generations(c);
  r.commits = c.run.durability != Durability::none;
  r.mesh = mesh_of(c);
  r.data = {.zero = static_cast<std::uint32_t>(c.parallel.zero),
            .canonical = c.parallel.canonical_reduction,
            .sums = c.parallel.sum_order,
            .gradients = c.parallel.compress_gradients,
            .weights = c.parallel.compress_weights,
            .local = c.parallel.sync_interval > 1};
  r.rank = first_with_parts(c, r.mesh);
  return r;
}

std::uint64_t commit_interval(const RunConfig& c) {
  return c.run.durability == Durability::step ? 1 : static_cast<std::uint64_t>(c.run.ckpt_interval);
}

std::uint32_t generations(const RunConfig& c) { return keeps_commits(c.run.durability) ? 2 : 1; }

Schedule schedule(const RunConfig& c) {
  // A constant rate does not depend on the number of steps, so that a longer run begins with the same steps.
  const bool constant = c.train.lr_schedule == ScheduleKind::constant;
  const auto total = std::max<std::int64_t>(1, constant ? std::max(c.train.steps, c.train.warmup) : c.train.steps);
  // A warm-up that is longer than the run is shortened; warnings_of() says so.
  return {.kind = c.train.lr_schedule,
          .peak = c.train.lr,
          .minimum = constant ? c.train.lr : c.train.min_lr,
          .warmup_steps = static_cast<std::uint64_t>(std::min(c.train.warmup, total)),
          .total_steps = static_cast<std::uint64_t>(total)};
}

// Small gradients can underflow in fp16; the other dtypes have a wider range.
LossScale loss_scale(const RunConfig& c) {
  const auto usual = c.model.dtype == DType::fp16 ? "dynamic" : "off";
  return LossScale::parse(c.train.loss_scale == "auto" ? usual : c.train.loss_scale);
}

std::vector<std::string> warnings_of(const RunConfig& c) {
  std::vector<std::string> warnings;
  if (auto family = warning_of_family(c)) warnings.push_back(std::move(*family));
  // The default warm-up was not chosen by the user, so a shorter run does not warn about it.
  if (c.train.warmup <= c.train.steps || c.train.warmup == RunConfig().train.warmup) return warnings;
  const auto longer = fmt::format("--warmup {} is longer than --steps {}", c.train.warmup, c.train.steps);
  warnings.push_back(
      c.train.lr_schedule == ScheduleKind::constant
          ? fmt::format("{}: the learning rate still rises when the run ends, and never reaches --lr {}; lower --warmup, or "
                        "raise --steps",
                        longer, c.train.lr)
          : fmt::format("{}: the warm-up is shortened to {} steps, and only the last step has --lr {}; lower --warmup, or "
                        "raise --steps",
                        longer, c.train.steps, c.train.lr));
  return warnings;
}

std::vector<std::string> warnings_of(const RunConfig& c, const Model& model) {
  const auto recipe = rules::Recipe::of(model.dtype, c.train.recipe, optimizer_of(c)->states());
  auto warnings = warnings_of(c);
  for (const auto& warning : rules::precision_warnings(recipe, c.train.optimizer, c.train.rule,
                                                       static_cast<std::uint64_t>(c.train.grad_accumulation)))
    warnings.push_back(with_flags(warning));
  for (auto& warning : warnings_of_init_from(c, model)) warnings.push_back(std::move(warning));
  return warnings;
}

std::unique_ptr<Optimizer> optimizer_of(const RunConfig& c) { return make_optimizer(c.train.optimizer, c.train.rule); }
std::unique_ptr<Optimizer> optimizer_of(const RunConfig& c, const Device& device) {
  return make_optimizer_for(device, c.train.optimizer, c.train.rule);
}

namespace {

// Measures with random tokens, because the time does not depend on their values.
void measure_layers(const RunConfig& c, const PlanRequest& request, const StepMap& map, const Plan& p,
                    walk::ProfileCosts& costs, ThreadPool& pool) {
  const auto device = make_device(c, pool);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(request.shape.batch.tokens()) * request.shape.micro_batches);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(
        math::random_below(c.train.seed, math::stream_of("measure"), i, static_cast<std::uint64_t>(c.model.vocab)));
  running::measure_costs(costs, map, p.programs.steady, *device, *optimizer_of(c, *device),
                         {.tokens = tokens, .targets = tokens, .loss_scale = 1.0 / static_cast<double>(tokens.size())},
                         {.memory_bytes = std::min(p.peak_bytes[Tier::device], 256 * kMiB),
                          .upload_bytes = p.step_traffic.back().upload,
                          .action_bytes = device->computes_on_host() ? 256 * kMiB : p.peak_bytes[Tier::device]});
}

}  // namespace

Plan make_plan(const RunConfig& c, const Model& model, const PlanRequest& request, const MachineProfile& profile,
               Trace* trace) {
  auto pool = make_pool(c);
  auto p = plan(model, request, profile, &pool);
  if (!p.fits) return p;
  const StepMap map(model, p.map);
  walk::ProfileCosts costs(map, profile);
  if (!c.plan.assumed_costs) {
    measure_layers(c, request, map, p, costs, pool);
    retime(p, model, request, profile, costs);
  }
  if (trace) trace_step(p, model, request, profile, costs, *trace);
  return p;
}

ChunkStore::Options store_options(const RunConfig& c) {
  ChunkStore::Options o;
  o.generations = generations(c);
  o.deadline = std::chrono::seconds(c.run.io_deadline);
  o.io = io_of_environment();
  if (c.memory.nvme_path.empty()) {
    o.paths = {c.run.out_dir};
    o.name = "store";
  } else {
    o.paths = c.memory.nvme_path;
    // Made absolute first: weakly_canonical() leaves a path that does not exist relative, and the name would change later.
    o.name = fmt::format("terrace-{:016x}",
                         math::stream_of(std::filesystem::weakly_canonical(std::filesystem::absolute(c.run.out_dir)).c_str()));
  }
  return o;
}

namespace {

// Steps that one program computes: those between two drains of an asynchronous schedule.
std::uint64_t steps_of_program(const Plan& p) {
  const auto& pipeline = p.map.pipeline;
  return pipeline.asynchronous() ? p.map.shape.micro_batches / pipeline.update_every : 1;
}

}  // namespace

nlohmann::json to_json(const RunConfig& c, const Plan& p) {
  const auto together = steps_of_program(p);
  const auto of_step = [&](double amount) { return amount / static_cast<double>(together); };
  nlohmann::json j;
  j["fits"] = p.fits;
  j["device"] = c.device_name();
  j["parameters"] = p.parameters;
  j["trained_parameters"] = p.trained_parameters;
  j["state_bytes"] = p.state_bytes;
  j["recipe"] = p.map.recipe.name;
  j["chunk_elements"] = p.map.chunk_elements;
  j["smallest_bytes"] = {{"device", p.smallest_bytes[Tier::device]}, {"host", p.smallest_bytes[Tier::host]}};
  if (!p.fits) {
    j["tier"] = name_of(p.refusal.tier);
    j["missing_bytes"] = p.refusal.missing_bytes;
    j["why"] = p.refusal.why;
    j["suggestion"] = suggestion(c, {&p.refusal, 1});
    return j;
  }
  j["step_time_s"] = of_step(p.times.seconds);
  j["peak_bytes"] = {
      {"device", p.peak_bytes[Tier::device]}, {"host", p.peak_bytes[Tier::host]}, {"nvme", p.peak_bytes[Tier::disk]}};
  const auto bytes = [](const memory::Traffic& t) -> nlohmann::json {
    return {{"read", t.read}, {"write", t.write}, {"h2d", t.upload}, {"d2h", t.download}};
  };
  auto step = traffic_of_step(p);
  for (auto* const amount : {&step.read, &step.write, &step.upload, &step.download}) *amount /= together;
  j["bytes"] = bytes(step);
  j["sum_order"] = word_of(p.map.data.sum_order());
  j["link_bytes"] = {{"within", of_step(p.steady_links.within)}, {"between", of_step(p.steady_links.between)}};
  memory::Traffic all;
  for (const auto& t : p.step_traffic) {
    all.read += t.read;
    all.write += t.write;
    all.upload += t.upload;
    all.download += t.download;
  }
  if (p.average.every != 0)
    j["average"] = {{"every", p.average.every},
                    {"seconds", p.average.seconds},
                    {"bytes", bytes(p.average.traffic)},
                    {"all_reduce_bytes", p.average.summed_bytes},
                    {"link_bytes", {{"within", p.average.links.within}, {"between", p.average.links.between}}}};
  j["walked"] = {{"steps", p.step_traffic.size() * together}, {"bytes", bytes(all)}};
  j["stall_s"] = nlohmann::json::object();
  for (const auto& [cause, seconds] : p.times.stall_s) j["stall_s"][cause] = of_step(seconds);
  j["exposed_s"] = {{"begin", of_step(p.times.begin_s)}, {"end", of_step(p.times.end_s)}};
  if (p.times.communicated.seconds > 0)
    j["communication"] = {{"seconds", of_step(p.times.communicated.seconds)},
                          {"hidden_s", of_step(p.times.communicated.hidden_s)}};
  j["commit"] = {{"commits", p.commits},
                 {"seconds", p.commit_seconds},
                 {"added_s", p.commit_added_seconds},
                 {"bytes", bytes(p.commit_traffic)}};
  j["floor_s"] = of_step(p.floor_s);
  j["binding"] = p.binding;
  j["link"] = p.link;
  if (const auto sources = data_sources(c); sources.size() > 1)
    for (const auto& source : sources) j["data"].push_back({{"source", source.name}, {"weight", source.weight}});
  const auto layers = static_cast<std::uint32_t>(p.map.activations.size());
  j["choice"] = {{"text", to_text(p.choice, layers)},
                 {"order", p.choice.order == Order::horizontal ? "horizontal" : "vertical"},
                 {"group", p.choice.group},
                 {"recompute", recomputing(p.map.activations)},
                 {"offload", offloading(p.map.activations)},
                 {"deferred_updates", p.choice.deferred},
                 {"early_updates", p.choice.early}};
  if (p.restoring_seconds > 0) j["restoring_step_time_s"] = of_step(p.restoring_seconds);
  j["tried"] = nlohmann::json::array();
  for (const auto& t : p.tried) {
    j["tried"].push_back({{"choice", to_text(t.choice, layers)}});
    if (t.seconds) j["tried"].back()["coarse_step_time_s"] = *t.seconds;  // from another simulation than step_time_s
  }
  j["update"] = to_text(p.map.update);
  j["prefetch_depth"] = p.prefetch_depth;
  return j;
}

}  // namespace terrace::cli
