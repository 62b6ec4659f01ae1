// Mixtures of experts in the engine: budgets, orders, tiers and recomputation change no bit, and every mesh trains what one
// rank trains.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include <terrace/parallel/run/measure_costs.h>

#include <terrace/tests/parallel/tensor/tensor_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

class ExpertRuns : public TensorRuns {};

TensorRun of(lm::ModelConfig config, const layers::Experts& experts) {
  config.experts = experts;
  return {.config = std::move(config)};
}
// With the router's own losses, whose gradients no rank may count twice.
const layers::Experts kFour{.count = 4, .chosen = 2, .balance_loss = 0.05, .square_loss = 0.01};
const layers::Experts kDropping{.count = 3, .chosen = 2, .shared = 1, .capacity_factor = 0.75, .balance_loss = 0.05};

TEST_F(ExpertRuns, BudgetsOrdersAndTiersChangeNoBit) {
  for (const auto& experts : {kFour, kDropping})
    for (const auto& config : {gpt2(), llama()}) {
      auto o = of(config, experts);
      o.micro_batches = 3;
      expect_no_bit_changes_in_little_memory(o);
    }
}

TEST_F(ExpertRuns, TensorRanksTrainWhatOneRankTrains) {
  for (const auto& experts : {kFour, kDropping})
    for (const auto& config : {gpt2(), llama()})
      for (const bool sequence : {false, true}) {
        auto o = of(config, experts);
        o.tensor_ranks = 2;
        o.sequence = sequence;
        expect_serial_in_both(o);
      }
}

// Tensor ranks add up the result of a mixture before it is normed.
TEST_F(ExpertRuns, WithNormsOfTheResultTrainWhatOneRankTrains) {
  for (const char* const family : {"olmo2", "gemma2"})
    for (const auto& [tensor, sequence, experts, context] :
         {std::tuple{2U, false, 1U, 1U}, {2U, true, 1U, 1U}, {1U, false, 2U, 1U}, {2U, true, 2U, 1U}, {1U, false, 1U, 2U}}) {
      auto o = of(with_norms(family), kFour);
      o.tensor_ranks = tensor;
      o.sequence = sequence;
      o.experts = experts;
      o.context = context;
      if (experts > 1) o.micro_batches = 1;
      o.recompute = sequence;
      o.squeezed = o.disk_tier = tensor == 1;
      o.schedule = experts == 1 && context == 1 ? "zb-h1" : "";
      expect_serial(o, kFp64);
    }
}

TEST_F(ExpertRuns, DataContextAndPipelineRanksTrainWhatOneRankTrainsInEveryStage) {
  OneIn chosen(2);
  for (std::uint32_t zero = 0; zero <= 3; ++zero)
    for (const auto& [data, tensor, schedule] :
         {std::tuple{2U, 1U, ""}, {2U, 2U, ""}, {1U, 1U, "1f1b"}, {2U, 1U, "zb-h1"}, {1U, 2U, "1f1b"}}) {
      if (!chosen()) continue;
      auto o = of(zero % 2 == 0 ? gpt2() : llama(), zero < 2 ? kFour : kDropping);
      o.data = {.ranks = data, .zero = zero};
      o.tensor_ranks = tensor;
      o.schedule = schedule;
      o.squeezed = o.disk_tier = (zero + data) % 2 == 0;
      o.recompute = zero == 3;
      expect_serial(o, kFp64);
    }
  auto o = of(llama(), kFour);
  o.config.seq_len = 24;
  o.batch = {2, 24};
  o.context = 4;
  expect_serial(o, kFp64);
}

// The worst case of a router. Its gates are constant, so it never learns to do better.
TEST_F(ExpertRuns, ARouterThatSendsEveryTokenToOneExpertStaysWithinTheBudget) {
  auto o = of(llama(), {.count = 4, .chosen = 1});
  o.zeroed = "block_sparse_moe.gate.weight";
  o.store = new_store();
  const auto plain = run_all(o).front();
  auto first = o;
  first.steps = 1;
  first.store = new_store();
  const auto before = run_all(first).front();
  for (const bool disk : {false, true}) {
    auto other = o;
    other.store = new_store();
    other.squeezed = true;
    other.disk_tier = disk;
    const auto found = run_all(other).front();
    ASSERT_EQ(found.refusal, "");
    EXPECT_EQ(first_difference(found.weights, plain.weights), "") << "disk " << disk;
    EXPECT_EQ(found.losses, plain.losses);
  }
  // An expert without tokens has a gradient of zero: its weights only decay, each by the same factor.
  const auto factor = [&](const std::string& name, std::size_t i) {
    return plain.weights.at(name)[i] / before.weights.at(name)[i];
  };
  const std::string idle = "model.layers.0.block_sparse_moe.experts.3.w1.weight",
                    busy = "model.layers.0.block_sparse_moe.experts.0.w1.weight";
  for (std::size_t i = 1; i < 100; ++i) EXPECT_NEAR(factor(idle, i), factor(idle, 0), 1e-12);
  EXPECT_GT(std::abs(factor(busy, 1) - factor(busy, 0)), 1e-6);
}

// The balance is that of the whole micro-batch, whose positions context ranks share, so they exchange their counts.
TEST_F(ExpertRuns, ContextRanksBalanceTheWholeMicroBatch) {
  for (const std::uint32_t ranks : {2U, 3U, 8U})
    for (const bool recompute : {false, true}) {
      auto o = of(recompute ? gpt2() : llama(), kFour);
      o.config.seq_len = 24;
      o.batch = {2, 24};
      o.context = ranks;
      o.recompute = recompute;
      o.data.zero = recompute ? 3 : 0;
      expect_serial(o, kFp64);
    }
}

// A slice does not tell which tokens of a micro-batch come first.
TEST_F(ExpertRuns, ContextRanksRefuseACapacity) {
  auto config = llama();
  config.experts = {.count = 2, .capacity_factor = 1};
  config.place = {.mesh = {.context = 2}};
  EXPECT_THAT(refusal_of([&] { static_cast<void>(lm::make_model(config)); }), testing::HasSubstr("`expert-capacity`"));
}

// An action measured alone has no router's results, and the row numbers in such memory could point anywhere; so its cost is
// estimated.
TEST_F(ExpertRuns, CostsOfLayersThatRouteAreThoseOfTheProfile) {
  auto o = of(llama(), kFour);
  const auto model = lm::make_model(o.config);
  const auto optimizer = make_optimizer(o.optimizer, {});
  const auto planned = plan(model, request_of(o, *optimizer, 0), {});
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  const StepMap map(model, planned.map);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(o.batch.tokens()) * o.micro_batches, 1);
  const MachineProfile profile;
  walk::ProfileCosts estimated(map, profile), measured(map, profile);
  running::measure_costs(measured, map, planned.programs.steady, *device, *optimizer, {.tokens = tokens, .targets = tokens});
  for (const auto& action : planned.programs.steady.actions) {
    if (!is_layer_action(action.op)) continue;
    const bool routes = model.layers[action.layer]->facts().report_size > 0;
    EXPECT_EQ(measured.seconds(action) == estimated.seconds(action), routes) << to_text(action);
  }
}

// An expert costs its own products, weights and rows. Counting the reads and writes of all experts made the plan of a block
// with 128 experts forty times too slow.
TEST_F(ExpertRuns, AnExpertCostsItsOwnRows) {
  auto o = of(llama(), {.count = 16, .chosen = 2});
  const auto model = lm::make_model(o.config);
  const auto optimizer = make_optimizer(o.optimizer, {});
  auto request = request_of(o, *optimizer, 0);
  request.chunk_elements = 1 << 12;
  const auto planned = plan(model, request, {});
  const StepMap map(model, planned.map);
  MachineProfile profile;
  const walk::ProfileCosts costs(map, profile);
  const auto& c = o.config;
  const double rows = 2.0 * static_cast<double>(o.batch.tokens()) / 16, number = size_of(c.dtype);
  std::size_t experts = 0;
  for (const auto& a : planned.programs.steady.actions) {
    if (a.op != Op::forward || !model.layers[a.layer]->name().ends_with(".experts") || map.phases().phase(a).weights.empty() ||
        map.phases().is_first(a))
      continue;
    double weights = 0;
    for (const auto& use : map.uses(a))
      if (map.chunks()[use.chunk].role == mapping::Role::state) weights += static_cast<double>(map.chunks()[use.chunk].bytes);
    const double flops = 2 * rows * static_cast<double>(c.hidden * c.ffn) * 3;
    const double bytes = weights + rows * number * static_cast<double>(2 * c.hidden + 4 * c.ffn);
    EXPECT_NEAR(flops / profile.matmul_fp64 + bytes / profile.memory_stream, costs.seconds(a), 1e-12) << to_text(a);
    ++experts;
  }
  EXPECT_EQ(16U * c.layers * o.micro_batches, experts);
}

// An expert is large enough to have a run of chunks of its own. Without `routes` the router's weights are zero, so that it
// always chooses the first experts.
struct Generation {
  std::int64_t chosen = 1, positions = 1;
  bool routes = true, squeezed = false;
};
struct Generated {
  std::uint64_t uploaded = 0;  // as the mover's ledger counts
  std::uint64_t expert_bytes = 0;
  std::vector<float> logits;
};
Generated generate(const Generation& g, const std::filesystem::path& store) {
  const lm::ModelConfig config{.family = lm::family_named("llama"),
                               .layers = 2,
                               .hidden = 512,
                               .heads = 8,
                               .ffn = 704,
                               .seq_len = 16,
                               .vocab = 257,
                               .experts = {.count = 6, .chosen = g.chosen}};
  const auto model = lm::make_model(lm::complete(config));
  const auto optimizer = make_optimizer("sgd", {.momentum = 0});
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  // The weights are on disk, as after a run that has ended.
  PlanRequest request{.shape = {{1, 16}, 1}, .budget = {kUnlimited, kUnlimited, kUnlimited}, .states = {}, .disk_tier = true};
  Engine::Options options{.device = device.get(), .store = {.paths = {store}, .durable = false}, .optimizer = optimizer.get()};
  const auto weights = random_weights(7);
  const auto fill = [&](const ParamSpec& param, std::uint64_t first, TensorView range) {
    weights(param, first, range);
    const bool router = param.name.ends_with("block_sparse_moe.gate.weight");
    if (router && !g.routes) std::memset(range.data, 0, range.bytes());
  };
  {
    Engine run(model, plan(model, request, {}), options);
    run.fill(fill);
    run.commit(1, "");
  }
  request.shape = {{1, 1}, 1};
  request.decode_positions = g.positions;
  auto p = plan(model, request, {});
  if (g.squeezed) {
    request.budget.device = p.smallest_bytes[Tier::device];
    p = plan(model, request, {});
  }
  EXPECT_TRUE(p.fits) << p.refusal.why;
  options.resume = true;
  Engine engine(model, p, options);
  Generated out;
  const auto& layout = engine.map().layout();
  const auto& run = layout.runs_of(2).at(1);  // behind the norm and the router
  out.expert_bytes = run.count * layout.chunk_elements() * sizeof(float);
  std::vector<float> logits(257);
  for (std::int64_t position = 0; position < g.positions; ++position) {
    const auto token = static_cast<std::int32_t>(math::random_below(5, 0, static_cast<std::uint64_t>(position), 257));
    engine.decode({.tokens = {&token, 1},
                   .targets = {},
                   .update = {},
                   .weights = {},
                   .logits = {reinterpret_cast<std::byte*>(logits.data()), DType::fp32, {1, 257}},
                   .position = position});
    out.logits.insert(out.logits.end(), logits.begin(), logits.end());
  }
  out.uploaded = engine.moved().upload;
  return out;
}

// In each of two blocks with six experts, each chosen expert is fetched once: for one position, and for many that choose the
// same.
TEST_F(ExpertRuns, GenerationFetchesTheExpertsThatARouterChoseAndNoOther) {
  for (const auto& [positions, routes] : {std::pair{1, true}, {12, false}}) {
    const auto one = generate({.chosen = 1, .positions = positions, .routes = routes}, new_store());
    for (const std::int64_t chosen : {2, 3, 6}) {
      const auto more = generate({.chosen = chosen, .positions = positions, .routes = routes}, new_store());
      EXPECT_EQ(more.uploaded - one.uploaded, 2 * static_cast<std::uint64_t>(chosen - 1) * one.expert_bytes)
          << chosen << " experts, " << positions << " positions";
    }
  }
}

// The device holds about one expert at a time, so a position fetches only part of its chosen experts again.
TEST_F(ExpertRuns, GenerationInTheSmallestBudgetGivesTheBitsOfAnUnlimitedOne) {
  std::uint64_t before = 0;
  for (const std::int64_t chosen : {1, 2, 6}) {
    const auto wide = generate({.chosen = chosen, .positions = 12}, new_store());
    const auto tight = generate({.chosen = chosen, .positions = 12, .squeezed = true}, new_store());
    EXPECT_EQ(tight.logits, wide.logits);
    EXPECT_GT(tight.uploaded, before);
    EXPECT_GT(tight.uploaded, wide.uploaded);
    before = tight.uploaded;
  }
}

}  // namespace
}  // namespace terrace::test
