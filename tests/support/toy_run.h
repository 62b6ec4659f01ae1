// Trains the toy model with the real engine (real files, real I/O) and returns the results.
#pragma once

#include <xxhash.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <terrace/parallel/model/freeze.h>
#include <terrace/parallel/train/trainer.h>
#include <terrace/tests/support/data_ranks.h>
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
  bool recompute = false, offload = false;         // for all layers
  std::vector<LayerActivations> activations = {};  // or separately for each layer
  bool before_use = true;
  std::optional<std::uint32_t> deferred = 0;  // layers, without before_use
  std::optional<std::uint32_t> early = 0;     // layers, with before_use
  const char* loss_scale = "off";
  std::optional<UpdatePlace> update;
  std::uint32_t depth = kAutoDepth;
  int threads = 1;
  std::uint64_t steps = 6;            // in an asynchronous order each one is several updates
  std::uint64_t commit_after = 0;     // 0: never
  bool commit_at_end = true;          // otherwise
  std::uint64_t not_finite_step = 0;  // this step's loss is NaN, so it is skipped; 0: none
  std::uint64_t left_out_step = 0;    // this step is not run at all
  bool resume = false;
  std::vector<std::filesystem::path> reshard_from = {};  // requires resume
  bool evaluate_between = false;
  std::uint32_t evaluate_batches = 1;  // per data rank
  std::filesystem::path store = {};    // if the plan uses the disk: a separate folder of the test
  std::uint32_t generations = 2;
  std::uint64_t commit_every = 0;  // for the plan; the test itself commits
  bool durable = false;
  std::shared_ptr<io::FileOps> file_ops = {};
  std::chrono::nanoseconds deadline = io::kIoDeadline;
  std::function<std::unique_ptr<IoEngine>(const IoOptions&)> make_io = make_io_engine;
  std::function<std::unique_ptr<Device>(ThreadPool&)> make_device = [](ThreadPool& pool) { return make_cpu_device(pool); };
  std::function<std::unique_ptr<Optimizer>()> make_optimizer = [] { return terrace::make_optimizer("adamw", {}); };
  MachineProfile profile;
  std::string recipe = "fp32";
  std::string param_groups = "";
  std::string freeze = "";
  std::uint64_t average_every = 0;  // requires data.local
  Trace* trace = nullptr;
  std::uint32_t gather_ahead = kAutoDepth;
  test::DataRanks data = {};  // shape.micro_batches are per data rank
  std::optional<pipeline::Pipeline> pipeline = {};
  std::uint64_t chunk_elements = 0;          // 0: chosen by the planner
  std::uint64_t evaluate_in_all = 0;         // micro-batches of all data ranks together; 0: evaluate_batches per rank
  std::optional<double> greatest_norm = {};  // 0: no clipping; empty: kGreatestNorm if updates wait for the norm
  [[nodiscard]] std::uint64_t evaluated() const {
    return evaluate_in_all != 0 ? evaluate_in_all : std::uint64_t{evaluate_batches} * data.ranks;
  }
  [[nodiscard]] bool asynchronous() const { return pipeline && pipeline->schedule.asynchronous(); }
  [[nodiscard]] std::uint32_t pipeline_ranks() const { return pipeline ? pipeline->schedule.placement.ranks : 1; }
};

struct RunResult {
  Plan planned;
  std::vector<double> losses, norms;
  std::vector<memory::Traffic> traffic;
  std::vector<walk::PeakLive> live;
  std::uint64_t hash = 0;
  PerTier<std::uint64_t> peak{};
  memory::Traffic moved, issued;
  std::uint64_t steps_run = 0;
};

inline PlanRequest request_of(const RunOptions& o);
// Little memory, so that everything goes to the disk. The larger run has every kind of chunk.
inline RunOptions options_on_disk(std::uint64_t steps, bool larger) {
  RunOptions o;
  o.steps = steps;
  if (larger) {
    o.sizes.dtype = DType::bf16;
    o.order = Order::vertical;
  }
  const auto smallest = plan(make_model(o.sizes), request_of(o), MachineProfile{}).smallest_bytes;
  o.disk_tier = true;
  o.budget = {smallest[Tier::device], 768 * kKiB, 256 * kMiB};
  return o;
}

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
                      .deferred = o.deferred,
                      .early = o.early,
                      .prefetch_depth = o.depth,
                      .chunk_elements = o.chunk_elements,
                      .steps = o.steps,
                      .evaluate_batches = o.evaluate_between ? o.evaluated() : 0,
                      .commit_every = o.commit_every,
                      .average_every = o.average_every,
                      .generations = o.generations,
                      .pipeline = o.pipeline,
                      .mesh = o.data.mesh(o.pipeline_ranks()),
                      .data = o.data.settings(),
                      .gather_ahead = o.gather_ahead};
  const auto optimizer = o.make_optimizer();
  request.states = optimizer->states();
  request.layer_unit = optimizer->layer_unit();
  request.param_groups = parse_param_groups(o.param_groups);
  request.freeze = model::parse_freeze(o.freeze);
  return request;
}

// The objects that main would own, in the order of dependence: an engine, and the library's trainer with the toy's data.
struct Training {
  explicit Training(const RunOptions& options, Communicator* ranks = nullptr)
      : o(options), rank(ranks ? static_cast<std::uint32_t>(ranks->rank()) : 0) {
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
    if (ranks) agreement.emplace(*ranks, *device);
    trainer.emplace(*engine, Trainer::Options{.read =
                                                  [this](Split, auto sequences, auto to_tokens, auto to_targets) {
                                                    read(sequences, to_tokens, to_targets);
                                                    return true;
                                                  },
                                              .rate = [](std::uint64_t) { return 1e-2; },
                                              .greatest_norm = o.greatest_norm.value_or(o.before_use ? kGreatestNorm : 0),
                                              .loss_scale = LossScale::parse(o.loss_scale),
                                              .ranks = agreement ? &*agreement : nullptr});
  }

  [[nodiscard]] std::vector<ChunkStore::Options> other_stores() const {
    std::vector<ChunkStore::Options> all;
    for (const auto& path : o.reshard_from) all.push_back({.paths = {path}, .durable = false});
    return all;
  }
  [[nodiscard]] std::uint64_t steps_done() const { return trainer->done() / trainer->together(); }
  [[nodiscard]] std::size_t tokens_a_step() const {  // of all data ranks
    return static_cast<std::size_t>(o.shape.batch.tokens()) * o.shape.micro_batches * o.data.ranks;
  }
  [[nodiscard]] std::int32_t draw(std::uint64_t step, std::uint64_t i) const {
    return static_cast<std::int32_t>(math::random_below(3, step, i, static_cast<std::uint64_t>(o.sizes.vocab)));
  }
  // The data of a skipped or left-out step is not used by any other step.
  void read(std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
    const auto seq = static_cast<std::uint64_t>(o.shape.batch.seq), odd_step = o.not_finite_step + o.left_out_step;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const auto token = sequences[t / seq] * seq + t % seq;
      const auto i = token % tokens_a_step();
      auto step = token / tokens_a_step() + 1;
      if (odd_step != 0 && step >= odd_step) ++step;
      tokens[t] = draw(step, i);
      targets[t] = i % 7 == 0 ? -1 : draw(step, i + 1);
    }
  }

  std::vector<Trainer::Step> step() {
    trainer->read();
    return trainer->step();
  }
  // A NaN loss scale makes all gradients non-finite. No trainer option does that in a chosen step, so this step is run by the
  // engine directly.
  running::StepResult step_that_is_not_finite() {
    const std::vector<std::int32_t> tokens(tokens_a_step() / o.data.ranks, 0);
    auto result = engine->step({.tokens = tokens, .targets = tokens, .loss_scale = std::nan("")});
    engine->skip();
    return result;
  }
  std::uint64_t hash() {  // over all master weights
    const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state(XXH64_createState(), &XXH64_freeState);
    XXH64_reset(state.get(), 0);
    engine->visit(
        [&](const ParamSpec&, std::uint64_t, TensorView range) { XXH64_update(state.get(), range.data, range.bytes()); });
    return XXH64_digest(state.get());
  }

  [[nodiscard]] Plan plan_of_rank() const {
    auto request = request_of(o);
    request.rank = rank;
    const auto p = plan(model, request, o.profile);
    return p.fits ? for_rank(p, model, request, o.profile) : p;
  }

  const RunOptions o;
  const std::uint32_t rank;
  ThreadPool pool{o.threads};
  const std::unique_ptr<Device> device = o.make_device(pool);
  const Model model = make_model(o.sizes);
  const Plan planned = plan_of_rank();
  const std::unique_ptr<Optimizer> optimizer = o.make_optimizer();
  // Empty if the plan does not fit.
  std::optional<Engine> engine;
  std::optional<Agreement> agreement;  // empty for one rank
  std::optional<Trainer> trainer;
};

inline RunResult run(const RunOptions& o, Communicator* ranks = nullptr) {
  Training training(o, ranks);
  RunResult out;
  out.planned = training.planned;
  if (!out.planned.fits) return out;
  for (std::uint64_t s = training.steps_done() + 1; s <= o.steps; ++s) {
    if (s == o.left_out_step) continue;
    auto& traffic = out.traffic.emplace_back();
    const auto add = [&](const running::StepResult& r) {
      out.losses.push_back(r.loss_sum);
      out.norms.push_back(r.gradient_norm);
      for (const auto part :
           {&memory::Traffic::upload, &memory::Traffic::download, &memory::Traffic::read, &memory::Traffic::write,
            &memory::Traffic::uploads, &memory::Traffic::downloads, &memory::Traffic::reads, &memory::Traffic::writes})
        traffic.*part += r.moved.*part;
      out.live.push_back(r.live);
    };
    if (s == o.not_finite_step)
      add(training.step_that_is_not_finite());
    else
      for (const auto& step : training.step()) add(step.result);
    ++out.steps_run;
    if (o.evaluate_between && s == 2) out.losses.push_back(*training.trainer->evaluate(o.evaluated()));
    if (o.commit_after == s) {
      training.trainer->commit();
      break;
    }
  }
  if (o.commit_after == 0 && o.commit_at_end) training.trainer->commit();
  out.hash = training.hash();
  out.peak = training.engine->peak_bytes();
  return out;
}

}  // namespace terrace::toy
