// Trains the toy model through the real engine (real files, real I/O) and tells what came out of it.
#pragma once

#include <xxhash.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <terrace/optimizers/schedule.h>
#include <terrace/parallel/engine.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace::toy {

inline constexpr double kGreatestNorm = 0.5;

struct RunOptions {
  Sizes sizes;
  StepShape shape{{2, 16}, 3};
  Budget budget{kUnlimited, kUnlimited, 0};
  bool disk_tier = false;
  Order order = Order::horizontal;
  std::uint32_t group = 0;
  bool recompute = false, offload = false;         // of all layers
  std::vector<LayerActivations> activations = {};  // or each one's own
  bool before_use = true;
  double loss_scale = 1;  // of asynchronous orders, whose updates settle themselves
  std::optional<UpdatePlace> update;
  std::uint32_t depth = kAutoDepth;
  int threads = 1;
  std::uint64_t steps = 6;
  std::uint64_t commit_after = 0;     // 0: never
  bool commit_at_end = true;          // else
  std::uint64_t not_finite_step = 0;  // its loss is NaN, and it is skipped; 0: none
  std::uint64_t left_out_step = 0;    // it is not run at all
  bool resume = false;
  std::vector<std::filesystem::path> reshard_from = {};  // with resume
  bool evaluate_between = false;
  std::uint32_t evaluate_batches = 1;  // of each data rank
  std::filesystem::path store = {};    // where the plan uses the disk, a folder of the test's own
  std::uint32_t generations = 2;
  std::uint64_t commit_every = 0;  // of the plan; the test commits
  bool durable = false;
  std::shared_ptr<FileOps> file_ops = {};
  std::chrono::nanoseconds deadline = kIoDeadline;
  std::function<std::unique_ptr<IoEngine>(const IoOptions&)> make_io = make_io_engine;
  std::function<std::unique_ptr<Device>(ThreadPool&)> make_device = make_cpu_device;
  std::function<std::unique_ptr<Optimizer>()> make_optimizer = [] { return terrace::make_optimizer("adamw", {}); };
  MachineProfile profile;
  std::string recipe = "fp32";
  std::string param_groups = "";
  std::uint64_t average_every = 0;  // with data.local
  Trace* trace = nullptr;
  std::uint32_t gather_ahead = kAutoDepth;
  DataParallel data = {};  // shape.micro_batches are each data rank's
  std::optional<pipeline::Pipeline> pipeline = {};
  [[nodiscard]] bool asynchronous() const { return pipeline && pipeline->schedule.asynchronous(); }
  [[nodiscard]] std::size_t updates_a_step() const {
    return asynchronous() ? shape.micro_batches / pipeline->schedule.update_every : 1;
  }
  [[nodiscard]] std::uint32_t pipeline_ranks() const { return pipeline ? pipeline->schedule.placement.ranks : 1; }
};

struct RunResult {
  Plan planned;
  std::vector<double> losses, norms;
  std::vector<Traffic> traffic;
  std::vector<PeakLive> live;
  std::uint64_t hash = 0;
  PerTier<std::uint64_t> peak{};
  Traffic moved, issued;
  std::uint64_t steps_run = 0;
};

inline PlanRequest request_of(const RunOptions& o) {
  PlanRequest request{.shape = o.shape,
                      .budget = o.budget,
                      .recipe = o.recipe,
                      .disk_tier = o.disk_tier,
                      .order = o.order,
                      .group = o.group,
                      .recompute = o.recompute ? kAllLayers : 0,
                      .offload = o.offload ? kAllLayers : 0,
                      .activations = o.activations,
                      .update = o.update,
                      .updates_before_use = o.before_use,
                      .prefetch_depth = o.depth,
                      .steps = o.steps,
                      .evaluate_batches = o.evaluate_between ? o.evaluate_batches * o.data.ranks : 0,
                      .commit_every = o.commit_every,
                      .average_every = o.average_every,
                      .generations = o.generations,
                      .pipeline = o.pipeline,
                      .data = o.data,
                      .gather_ahead = o.gather_ahead};
  const auto optimizer = o.make_optimizer();
  request.states = optimizer->states();
  request.layer_unit = optimizer->layer_unit();
  request.param_groups = parse_param_groups(o.param_groups);
  return request;
}

// What main would own, in the order of dependence, and the steps of a training loop.
struct Training {
  explicit Training(const RunOptions& options, Communicator* ranks = nullptr)
      : o(options),
        rank(ranks ? ranks->rank() % static_cast<int>(o.data.ranks) : 0),
        pipeline_rank(ranks ? static_cast<std::uint32_t>(ranks->rank()) / o.data.ranks : 0) {
    if (!planned.fits) return;
    if (planned.capacity.disk != 0 && o.store.empty())
      throw std::logic_error("a toy run that uses the disk needs RunOptions::store");
    engine.emplace(
        model, planned,
        Engine::Options{.device = device.get(),
                        .store = {.paths = {o.store}, .durable = o.durable, .deadline = o.deadline, .file_ops = o.file_ops},
                        .resume = o.resume,
                        .reshard_from = other_stores(),
                        .optimizer = optimizer.get(),
                        .communicator = ranks,
                        .trace = o.trace,
                        .make_io = o.make_io});
    if (!o.resume) engine->fill(initialise);
  }

  [[nodiscard]] std::vector<ChunkStore::Options> other_stores() const {
    std::vector<ChunkStore::Options> all;
    for (const auto& path : o.reshard_from) all.push_back({.paths = {path}, .durable = false});
    return all;
  }
  [[nodiscard]] std::uint64_t steps_done() const { return o.resume ? engine->resumed()->step : 0; }
  [[nodiscard]] std::size_t tokens_a_step() const {
    return static_cast<std::size_t>(o.shape.batch.tokens()) * o.shape.micro_batches * o.data.ranks;
  }
  [[nodiscard]] std::size_t tokens_an_update() const {
    return tokens_a_step() / (o.data.local ? o.data.ranks : 1) / o.updates_a_step();
  }
  [[nodiscard]] std::int32_t draw(std::uint64_t step, std::uint64_t i) const {
    return static_cast<std::int32_t>(random_below(3, step, i, static_cast<std::uint64_t>(o.sizes.vocab)));
  }
  void read_batch(std::uint64_t step) {  // this rank's micro-batches of the global batch
    tokens.clear();
    targets.clear();
    const auto per = static_cast<std::size_t>(o.shape.batch.tokens());
    for (std::size_t i = 0; i < tokens_a_step(); ++i) {
      if (i / per % o.data.ranks != planned.map.data.turn()) continue;
      tokens.push_back(draw(step, i));
      targets.push_back(i % 7 == 0 ? -1 : draw(step, i + 1));
    }
  }

  StepResult step(std::uint64_t s) {
    read_batch(s);
    const std::uint64_t odd_step = o.not_finite_step + o.left_out_step;
    UpdateStep update{
        .step = odd_step != 0 && s > odd_step ? s - 1 : s, .learning_rate = 1e-2, .gradient_scale = 1 / o.loss_scale};
    const auto scale = (s == o.not_finite_step ? std::nan("") : o.loss_scale) / static_cast<double>(tokens_an_update());
    std::vector<UpdateStep> updates(o.updates_a_step(), update);
    for (std::size_t u = 0; u < updates.size(); ++u) updates[u].step = (s - 1) * updates.size() + u + 1;
    if (!o.asynchronous()) updates.clear();
    auto r = engine->step({.tokens = tokens,
                           .targets = targets,
                           .loss_scale = scale,
                           .update = update,
                           .updates = updates,
                           .greatest_norm = kGreatestNorm});
    if (o.asynchronous()) return r;
    if (!std::isfinite(r.gradient_norm)) {
      engine->skip();
      return r;
    }
    std::vector<double> group_scales;
    for (std::size_t g = 0; g + 1 < r.group_norms.size(); ++g)
      group_scales.push_back(clip_factor(r.group_norms[g], *planned.map.param_groups[g].clip));
    if (o.before_use)
      update.gradient_scale = clip_factor(r.group_norms.empty() ? r.gradient_norm : r.group_norms.back(), kGreatestNorm);
    engine->set_pending(update, std::move(group_scales));
    if (o.average_every != 0 && s % o.average_every == 0) engine->average();
    return r;
  }
  std::vector<double> evaluate() {  // of the batch at hand, its micro-batches round and round
    const std::size_t at_once = engine->evaluated_at_once();
    std::vector<std::int32_t> some_tokens, some_targets;
    std::vector<double> losses;
    for (std::size_t first = 0; first < o.evaluate_batches; first += at_once) {
      some_tokens.clear();
      some_targets.clear();
      for (std::size_t i = 0; i < at_once * static_cast<std::size_t>(o.shape.batch.tokens()); ++i) {
        const auto at = (first * static_cast<std::size_t>(o.shape.batch.tokens()) + i) % tokens.size();
        some_tokens.push_back(tokens[at]);
        some_targets.push_back(targets[at]);
      }
      const auto some = engine->evaluate({.tokens = some_tokens, .targets = some_targets});
      losses.insert(losses.end(), some.begin(), some.end());
    }
    losses.resize(o.evaluate_batches);
    return losses;
  }
  std::uint64_t hash() {  // of all master weights
    const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state(XXH64_createState(), &XXH64_freeState);
    XXH64_reset(state.get(), 0);
    engine->visit(
        [&](const ParamSpec&, std::uint64_t, TensorView range) { XXH64_update(state.get(), range.data, range.bytes()); });
    return XXH64_digest(state.get());
  }

  [[nodiscard]] Plan plan_of_rank() const {
    auto request = request_of(o);
    request.pipeline_rank = pipeline_rank;
    const auto p = plan(model, request, o.profile);
    return p.fits ? for_rank(p, model, request, o.profile, static_cast<std::uint32_t>(rank)) : p;
  }

  const RunOptions o;
  const int rank;  // among the data ranks
  const std::uint32_t pipeline_rank;
  ThreadPool pool{o.threads};
  const std::unique_ptr<Device> device = o.make_device(pool);
  const Model model = make_model(o.sizes);
  const Plan planned = plan_of_rank();
  const std::unique_ptr<Optimizer> optimizer = o.make_optimizer();
  std::vector<std::int32_t> tokens, targets;
  std::optional<Engine> engine;  // empty when the plan does not fit
};

inline RunResult run(const RunOptions& o, Communicator* ranks = nullptr) {
  Training training(o, ranks);
  RunResult out;
  out.planned = training.planned;
  if (!out.planned.fits) return out;
  for (std::uint64_t s = training.steps_done() + 1; s <= o.steps; ++s) {
    if (s == o.left_out_step) continue;
    const auto r = training.step(s);
    if (o.asynchronous()) {
      out.losses.insert(out.losses.end(), r.loss_sums.begin(), r.loss_sums.end());
      out.norms.insert(out.norms.end(), r.gradient_norms.begin(), r.gradient_norms.end());
    } else {
      out.losses.push_back(r.loss_sum);
      out.norms.push_back(r.gradient_norm);
    }
    out.traffic.push_back(r.moved);
    out.live.push_back(r.live);
    ++out.steps_run;
    if (o.evaluate_between && s == 2)
      for (const double loss : training.evaluate()) out.losses.push_back(loss);
    if (o.commit_after == s) {
      training.engine->commit(s, "{}");
      break;
    }
  }
  if (o.commit_after == 0 && o.commit_at_end) training.engine->commit(o.steps, "{}");
  out.hash = training.hash();
  out.peak = training.engine->peak_bytes();
  return out;
}

}  // namespace terrace::toy
