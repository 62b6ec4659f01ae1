// A language model split over tensor ranks: threads of this process, each with an engine and a store of its own, compared with
// the same model on one rank.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/math/philox.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/model/freeze.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/train/initial_weights.h>
#include <terrace/parallel/train/trainer.h>
#include <terrace/tests/doubles/ledger.h>
#include <terrace/tests/support/data_ranks.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/one_in.h>

#include <terrace/tests/parallel/comm/rank_group.h>

namespace terrace::test {

struct TensorRun {
  lm::ModelConfig config;
  std::uint32_t tensor_ranks = 1;
  bool sequence = false;
  std::uint32_t pieces = 1;  // number of pieces in which rows are exchanged beside the products
  TensorGrid grid = {};
  std::uint32_t context = 1;  // ranks that share the positions of batch.seq
  std::uint32_t experts = 1;  // expert ranks of each data rank, each with its own sequences
  BatchShape batch{2, 16};
  std::uint32_t micro_batches = 2;  // of each data rank
  test::DataRanks data = {};
  std::string schedule = "";   // of a pipeline of two ranks; empty: none
  std::uint32_t together = 1;  // updates of an asynchronous schedule between drains
  std::string optimizer = "adamw", recipe = "fp32", param_groups = "", freeze = "";
  OptimizerSettings settings{.eps = 1e-3};
  double rate = 1e-2;
  Order order = Order::horizontal;
  bool recompute = false, before_use = true, squeezed = false, disk_tier = false;
  std::uint64_t chunk_elements = 0;
  std::uint64_t device_bytes = 0;  // device budget; 0: unlimited, or squeezed
  std::uint64_t steps = 3, commit_after = 0;
  bool resume = false;
  std::vector<std::filesystem::path> reshard_from = {};
  std::filesystem::path store = {};
  std::string zeroed = {};             // parameters whose names end with this begin as zeros; empty: none
  std::uint64_t evaluated = 4;         // micro-batches
  BatchReader::Read read = {};         // empty: one document a sequence, of random tokens
  BatchReader::Number documents = {};  // as in Trainer::Options

  [[nodiscard]] std::uint32_t stages() const { return schedule.empty() ? 1 : 2; }
  [[nodiscard]] std::uint32_t ranks() const { return stages() * data.ranks * experts * context * tensor_ranks; }
};

inline Mesh tensor_mesh(std::uint32_t ranks, const TensorGrid& grid) {
  return grid.side > 1 ? Mesh{.depth = grid.depth, .row = grid.side, .col = grid.side} : Mesh{.part = ranks};
}

inline Mesh mesh_of(const TensorRun& o) {
  const auto kv_heads = static_cast<std::uint32_t>(o.config.kv_heads == 0 ? o.config.heads : o.config.kv_heads);
  auto mesh = tensor_mesh(o.tensor_ranks, o.grid);
  if (mesh.part % kv_heads == 0) mesh.twin = std::exchange(mesh.part, kv_heads) / kv_heads;
  const auto data = o.data.mesh();
  mesh.copy = data.copy;
  mesh.shard = data.shard;
  mesh.pp = o.stages();
  mesh.expert = o.experts;
  mesh.context = o.context;
  return mesh;
}

using NamedWeights = std::map<std::string, std::vector<double>>;

struct TensorResult {
  std::vector<double> losses, norms;
  std::vector<std::uint64_t> counted;  // number of targets
  double held_out = 0;
  RouterResult router;   // of the last step
  NamedWeights weights;  // whole tensors
  Ledger step;           // of the last step
  PerTier<std::uint64_t> peak{}, smallest{};
  std::string refusal;
};

inline double number_at(const TensorView& view, std::size_t i) {
  switch (view.dtype) {
    case DType::fp64: return view.as<double>()[i];
    case DType::fp32: return view.as<float>()[i];
    default: return static_cast<float>(view.as<bf16>()[i]);
  }
}

inline PlanRequest request_of(const TensorRun& o, const Optimizer& optimizer, std::uint32_t rank) {
  PlanRequest request{.shape = {{o.batch.batch, o.batch.seq / o.context}, o.micro_batches},
                      .budget = {kUnlimited, kUnlimited, 0},
                      .recipe = o.recipe,
                      .states = optimizer.states(),
                      .layer_unit = optimizer.layer_unit(),
                      .param_groups = parse_param_groups(o.param_groups),
                      .freeze = model::parse_freeze(o.freeze),
                      .disk_tier = o.disk_tier,
                      .order = o.order,
                      .recompute = o.recompute ? kAllLayers : 0,
                      .update = Tier::host,
                      .updates_before_use = o.before_use,
                      .chunk_elements = o.chunk_elements,
                      .steps = o.steps,
                      .evaluate_batches = o.evaluated,
                      .mesh = mesh_of(o),
                      .data = o.data.settings()};
  if (!o.schedule.empty()) {
    const auto schedule = pipeline::write_order(
        o.schedule, {.ranks = o.stages(), .micro_batches = o.micro_batches, .chunks = 1, .updates = o.together});
    const std::vector<double> costs(2 * static_cast<std::size_t>(o.config.layers) + 2, 1.0);
    request.pipeline = {schedule, pipeline::balance(costs, schedule.placement.stages)};
  }
  request.shape.micro_batches *= o.together;
  request.rank = rank;
  return request;
}

inline Model model_of(const lm::ModelConfig& config) {
  return layers::make_transformer(lm::transformer_of(lm::complete(config)));
}

// The model configuration of one rank.
inline lm::ModelConfig config_of(const TensorRun& o, std::uint32_t rank) {
  auto config = o.config;
  config.place = {.mesh = mesh_of(o),
                  .rank = rank,
                  .sequence = o.sequence,
                  .pieces = o.pieces,
                  .cube = o.grid.cube,
                  .ring = o.config.place.ring,
                  .two_rings = o.config.place.two_rings};
  return config;
}

// Plans that all ranks of a run share, because planning takes longer than the steps of so small a model.
struct CommonPlan {
  Budget budget;
  std::vector<Plan> stages;
  PerTier<std::uint64_t> smallest{};  // of the first stage
};

inline CommonPlan plan_of(const TensorRun& o) {
  const auto model = model_of(config_of(o, 0));
  const auto optimizer = make_optimizer(o.optimizer, o.settings);
  auto request = request_of(o, *optimizer, 0);
  const auto plan_stages = [&] {
    std::vector<Plan> stages;
    for (std::uint32_t s = 0; s < o.stages(); ++s) {
      auto its = request;
      its.rank = request.mesh.at(0, Axis::pp, s);
      stages.push_back(plan(model, its, {}));
    }
    return stages;
  };
  auto stages = plan_stages();
  const auto least = stages.front().smallest_bytes;
  if (o.squeezed) {
    auto smallest = least;
    for (const auto& its : stages)
      for (const auto tier : {Tier::device, Tier::host}) smallest[tier] = std::max(smallest[tier], its.smallest_bytes[tier]);
    request.budget.device = smallest[Tier::device] * 7 / 4;
    if (o.disk_tier) request.budget = {request.budget.device, smallest[Tier::host] * 3 + 128 * kKiB, kGiB};
  }
  if (o.device_bytes != 0) {
    request.budget.device = o.device_bytes;
    if (o.disk_tier) request.budget = {o.device_bytes, least[Tier::host] * 3 + kMiB, 4 * kGiB};
  }
  if (o.squeezed || o.device_bytes != 0) stages = plan_stages();
  return {request.budget, std::move(stages), least};
}

// One rank's run. `comm` may be null.
inline TensorResult run_rank(const TensorRun& o, const CommonPlan& common, Communicator* comm, Ledger* ledger) {
  const auto rank = comm ? static_cast<std::uint32_t>(comm->rank()) : 0;
  const auto model = model_of(config_of(o, rank));
  const auto optimizer = make_optimizer(o.optimizer, o.settings);
  auto request = request_of(o, *optimizer, rank);
  request.budget = common.budget;
  TensorResult out;
  out.smallest = common.smallest;
  const auto& its = common.stages.at(request.mesh.coordinate(rank, Axis::pp));
  if (!its.fits) {
    out.refusal = its.refusal.why;
    return out;
  }
  const auto planned = for_rank(its, model, request, {});
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  Engine::Options options{.device = device.get(),
                          .store = {.paths = {o.store / ("rank" + std::to_string(rank))}, .durable = false},
                          .resume = o.resume,
                          .optimizer = optimizer.get(),
                          .communicator = comm};
  for (const auto& path : o.reshard_from) options.reshard_from.push_back({.paths = {path}, .durable = false});
  Engine engine(model, planned, options);
  const auto weights = random_weights(7);
  if (!o.resume)
    engine.fill([&](const ParamSpec& param, std::uint64_t first, TensorView range) {
      auto drawn = param;
      if (param.name.ends_with("lora_B.weight"))
        drawn.init = {InitKind::normal, 0.1};  // zeros would leave A without a gradient
      weights(drawn, first, range);
      if (!o.zeroed.empty() && param.name.ends_with(o.zeroed)) std::memset(range.data, 0, range.bytes());
    });
  std::optional<Agreement> agreement;
  if (comm) agreement.emplace(*comm, *device);
  const auto seq = static_cast<std::size_t>(o.batch.seq);
  const auto read = [&](Split split, auto sequences, auto tokens, auto targets) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto draw = [&](std::size_t at) {
        return static_cast<std::int32_t>(math::random_below(split == Split::training ? 3 : 4, sequences[i / seq], at,
                                                            static_cast<std::uint64_t>(o.config.vocab)));
      };
      tokens[i] = draw(i % seq);
      targets[i] = i % seq % 7 == 0 ? -1 : draw(i % seq + 1);
    }
    return true;
  };
  Trainer trainer(engine, {.read = o.read ? o.read : BatchReader::Read(read),
                           .rate = [&](std::uint64_t) { return o.rate; },
                           .greatest_norm = o.before_use ? 0.5 : 0,
                           .ranks = agreement ? &*agreement : nullptr,
                           .documents = o.documents});
  while (trainer.done() < o.steps) {
    if (ledger) ledger->clear();
    trainer.read();
    for (const auto& step : trainer.step()) {
      out.losses.push_back(step.result.loss_sum);
      out.norms.push_back(step.result.gradient_norm);
      out.counted.push_back(step.targets);
      out.router = step.result.router;
    }
    if (ledger) out.step = *ledger;
    if (trainer.done() == o.commit_after) {
      trainer.commit();
      return out;
    }
  }
  out.held_out = trainer.evaluate(o.evaluated).value();
  engine.visit([&](const ParamSpec& param, std::uint64_t first, TensorView range) {
    auto& values = out.weights[param.name];
    const auto whole = static_cast<std::size_t>(model::whole_shape(param.shape, param.split).elements());
    if (values.empty()) values.assign(whole, std::nan(""));
    for (std::size_t i = 0; i < static_cast<std::size_t>(range.elements()); ++i) values.at(first + i) = number_at(range, i);
  });
  out.peak = engine.peak_bytes();
  return out;
}

// The first tensor that differs in a bit; empty: none.
inline std::string first_difference(const NamedWeights& a, const NamedWeights& b) {
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second != values) return name;
  }
  return a.size() == b.size() ? "" : "the number of tensors";
}

// Runs all ranks, which must agree on everything that a user sees.
inline std::vector<TensorResult> run_all(const TensorRun& o) {
  const auto common = plan_of(o);
  if (o.ranks() == 1) return {run_rank(o, common, nullptr, nullptr)};
  std::vector<TensorResult> all(o.ranks());
  std::vector<Ledger> ledgers(o.ranks());
  const auto errors = on_threads(static_cast<int>(o.ranks()), {std::chrono::seconds(60)}, [&](Rank& rank) {
    const auto r = static_cast<std::size_t>(rank.comm->rank());
    const auto comm = with_ledger(std::move(rank.comm), ledgers[r]);
    all[r] = run_rank(o, common, comm.get(), &ledgers[r]);
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  for (const auto& one : all) {
    EXPECT_EQ(one.losses, all[0].losses);
    EXPECT_EQ(one.norms, all[0].norms);
    EXPECT_EQ(one.held_out, all[0].held_out);
    EXPECT_EQ(one.counted, all[0].counted);
    EXPECT_EQ(first_difference(one.weights, all[0].weights), "");
  }
  return all;
}

inline lm::ModelConfig gpt2() {
  return {.family = lm::family_named("gpt2"),
          .layers = 2,
          .hidden = 64,
          .heads = 8,
          .seq_len = 16,
          .vocab = 257,
          .dtype = DType::fp64};
}
// Grouped-query heads, an odd vocabulary, and widths that are not powers of two.
inline lm::ModelConfig llama() {
  return {.family = lm::family_named("llama"),
          .layers = 2,
          .hidden = 48,
          .heads = 8,
          .kv_heads = 2,
          .ffn = 72,
          .seq_len = 16,
          .vocab = 263,
          .dtype = DType::fp64};
}

// A model of one block in fp32, for sizes that decide how much memory a run needs.
inline lm::ModelConfig one_block(const char* family, std::int64_t hidden, std::int64_t ffn, std::int64_t seq_len) {
  lm::ModelConfig config{.family = lm::family_named(family), .layers = 1, .hidden = hidden, .heads = 8, .ffn = ffn};
  config.seq_len = seq_len;
  config.vocab = 256;
  config.dtype = DType::fp32;
  return config;
}

// Norms of q and k or of the blocks' results, and heads with a width of their own.
inline lm::ModelConfig with_norms(const char* family) {
  auto config = llama();
  config.family = lm::family_named(family);
  config.head_size = 12;
  if (std::string_view(family).starts_with("gemma")) {  // one of the two blocks has a window, as is usual in this family
    config.window = layers::Windows({5, 0});
    config.query_scalar = 7;
  }
  return config;
}

inline double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double v : values) most = std::max(most, std::abs(v));
  return most;
}

inline void expect_equal(const TensorResult& one, const TensorResult& other, double tolerance, const std::string& what) {
  ASSERT_EQ(other.refusal, "") << what;
  ASSERT_EQ(one.losses.size(), other.losses.size()) << what;
  for (std::size_t s = 0; s < one.losses.size(); ++s) {
    EXPECT_NEAR(one.losses[s], other.losses[s], tolerance * std::abs(one.losses[s])) << what << ", step " << s;
    EXPECT_NEAR(one.norms[s], other.norms[s], tolerance * one.norms[s]) << what << ", step " << s;
  }
  EXPECT_NEAR(one.held_out, other.held_out, tolerance * std::abs(one.held_out)) << what;
  ASSERT_EQ(one.weights.size(), other.weights.size()) << what;
  for (const auto& [name, expected] : one.weights) {
    const auto& found = other.weights.at(name);
    ASSERT_EQ(expected.size(), found.size()) << what << ", " << name;
    double worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_FALSE(std::isnan(found[i])) << what << ", " << name << ", element " << i << " was never visited";
      worst = std::max(worst, std::abs(expected[i] - found[i]));
    }
    EXPECT_LE(worst, tolerance * std::max(1.0, largest(expected))) << what << ", " << name;
  }
}

inline std::string name_of(const TensorRun& o) {
  return fmt::format("{} tiles {}, {}, {} and {} tp {}{} grid {}x{}{} cp {}{} window {} ep {} dp {} zero {} {} {}{}{}",
                     *o.config.family.get().name, o.config.vocab_tiles, o.config.mlp_tiles, o.config.mlp_row_tiles,
                     o.config.attention_tiles, o.tensor_ranks, o.sequence ? fmt::format(" sp in {}", o.pieces) : "",
                     o.grid.depth, o.grid.side, o.grid.cube ? " cube" : "", o.context,
                     o.config.place.two_rings  ? " two rings"
                     : o.config.place.ring > 1 ? fmt::format(" ring {}", o.config.place.ring)
                                               : "",
                     to_string(o.config.window), o.experts, o.data.ranks, o.data.zero, o.schedule,
                     terrace::name_of(o.config.dtype), o.recompute ? " recompute" : "", o.disk_tier ? " disk" : "");
}

class TensorRuns : public FolderTest {
 protected:
  std::filesystem::path new_store() { return folder_ / std::to_string(runs_++); }
  TensorResult serial(TensorRun o);
  TensorResult expect_serial(TensorRun o, double tolerance);
  void expect_serial_in_both(TensorRun o);
  // Runs in a new store, which is then removed.
  TensorResult run(TensorRun o) {
    o.store = new_store();
    const auto result = run_all(o).front();
    std::filesystem::remove_all(o.store);
    return result;
  }
  // Runs in little memory, with and without a disk, in both orders, with and without recomputation; expects the same bits.
  void expect_no_bit_changes_in_little_memory(const TensorRun& o) {
    const auto plain = run(o);
    for (const bool disk : {false, true})
      for (const auto order : {Order::horizontal, Order::vertical}) {
        auto other = o;
        other.squeezed = true;
        other.disk_tier = disk;
        other.order = order;
        other.recompute = disk;
        expect_same(plain, run(other), disk ? "disk" : "memory");
      }
  }
  // A run that has committed these steps and can be resumed.
  TensorRun stopped_after(std::uint64_t steps, TensorRun o) {
    o.store = new_store();
    o.commit_after = steps;
    run_all(o);
    o.commit_after = 0;
    o.resume = true;
    return o;
  }
  // The end of a stopped run, with other ranks or tiles, in a store of its own.
  TensorResult resume_as(TensorRun other, const TensorRun& stopped) {
    for (std::uint32_t r = 0; r < stopped.ranks(); ++r) other.reshard_from.push_back(stopped.store / fmt::format("rank{}", r));
    other.store = new_store();
    other.resume = true;
    return run_all(other).front();
  }
  // What a run gives that begins after these steps of the whole one.
  static TensorResult end_of(TensorResult whole, std::ptrdiff_t steps) {
    whole.losses.erase(whole.losses.begin(), whole.losses.begin() + steps);
    whole.norms.erase(whole.norms.begin(), whole.norms.begin() + steps);
    return whole;
  }
  static void expect_same(const TensorResult& a, const TensorResult& b, const std::string& what) {
    ASSERT_EQ(b.refusal, "") << what;
    EXPECT_EQ(a.losses, b.losses) << what;
    EXPECT_EQ(a.norms, b.norms) << what;
    EXPECT_EQ(a.held_out, b.held_out) << what;
    EXPECT_EQ(first_difference(a.weights, b.weights), "") << what;
  }
  int runs_ = 0;
};

// The whole model on one rank that computes all micro-batches.
inline TensorResult TensorRuns::serial(TensorRun o) {
  o.store = new_store();
  o.micro_batches *= o.data.ranks * o.experts;
  o.tensor_ranks = o.pieces = o.context = o.experts = o.config.place.ring = 1;
  o.config.place.two_rings = o.sequence = false;
  o.grid = {};
  o.config.vocab_tiles = o.config.mlp_tiles = o.config.mlp_row_tiles = o.config.attention_tiles = 1;
  o.data = {};
  o.schedule = "";
  o.squeezed = o.disk_tier = false;
  return run_all(o).front();
}

inline constexpr double kFp64 = 1e-11, kFp32 = 2e-5;

// After a failure, the cases that follow it in the test are left out.
inline TensorResult TensorRuns::expect_serial(TensorRun o, double tolerance) {
  if (HasFailure()) return {};
  const auto one = serial(o);
  o.store = new_store();
  auto all = run_all(o);
  std::filesystem::remove_all(o.store);
  expect_equal(one, all.front(), tolerance, name_of(o));
  return all.front();
}

// In fp64, then in fp32 with recomputation.
inline void TensorRuns::expect_serial_in_both(TensorRun o) {
  expect_serial(o, kFp64);
  o.config.dtype = DType::fp32;
  o.recompute = true;
  expect_serial(o, kFp32);
}

}  // namespace terrace::test
