// Sequence parallelism whose exchanges run in pieces beside the products trains what one rank trains, moves the same bytes as
// without pieces, and hides all but three calls of each layer's exchanges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <deque>

#include <terrace/parallel/map/exchange.h>
#include <terrace/parallel/passes/check_collectives.h>
#include <terrace/parallel/walk/overlap.h>

#include <terrace/tests/parallel/run/beside.h>
#include <terrace/tests/parallel/tensor/tensor_run.h>

namespace terrace::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TensorRun of(lm::ModelConfig config, std::uint32_t ranks, std::uint32_t pieces) {
  TensorRun o{.config = std::move(config), .tensor_ranks = ranks, .sequence = true, .pieces = pieces};
  o.batch = {3, 16};
  return o;
}
// Heads and features divisible by 2, 3, 4 and 6.
lm::ModelConfig divisible(lm::ModelConfig config) {
  config.heads = 12;
  config.hidden = 48;
  if (config.kv_heads != 0) config.kv_heads = 6;
  return config;
}

class TensorPieces : public TensorRuns {};

// 48 rows on 2, 3 and 4 ranks are shares of 24, 16 and 12 rows; 5 pieces divide none of them.
TEST_F(TensorPieces, TrainWhatOneRankTrains) {
  OneIn chosen(3);
  for (const auto& config : {divisible(gpt2()), divisible(llama()), divisible(with_norms("olmo2"))})
    for (const std::uint32_t ranks : {2U, 3U, 4U})
      for (const std::uint32_t pieces : {2U, 5U, 12U}) {
        if (!chosen()) continue;
        auto o = of(config, ranks, pieces);
        if (ranks == 4) o.config.kv_heads = config.kv_heads == 0 ? 0 : 2;  // held by two ranks each
        o.config.tied = pieces != 5;
        o.recompute = pieces == 5;
        expect_serial(o, kFp64);
        o.config.dtype = DType::fp32;
        expect_serial(o, kFp32);
        if (HasFailure()) return;
      }
}

TEST_F(TensorPieces, ComposeWithDataAndPipelineParallelismInEveryStageOnDisk) {
  OneIn chosen(3);
  for (const auto& config : {gpt2(), llama()})
    for (const auto& [data, schedule] : {std::pair{2U, ""}, {1U, "1f1b"}, {2U, "zb-h1"}})
      for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
        if (!chosen()) continue;
        auto o = of(config, 2, 3);
        o.batch = {1, 16};
        o.data = {.ranks = data, .zero = zero};
        o.schedule = schedule;
        o.recompute = zero == 1;
        o.squeezed = o.disk_tier = zero % 2 == 1;
        expect_serial(o, kFp64);
        if (HasFailure()) return;
      }
}

// Context ranks share heads, a ring, or both.
TEST_F(TensorPieces, ComposeWithContextParallelism) {
  for (const auto& config : {gpt2(), llama()})
    for (const auto& [context, ring] : {std::pair{2U, 1U}, {2U, 2U}, {4U, 2U}}) {
      auto o = of(config, 2, 2);
      o.config.seq_len = 32;
      o.config.place.ring = ring;
      o.context = context;
      o.batch = {2, 32};
      o.recompute = ring == 2;
      expect_serial(o, kFp64);
      if (HasFailure()) return;
    }
}

// A model may mix layers with pieces and layers without them: experts, and MLPs in tiles.
TEST_F(TensorPieces, StandBesideExpertsAndTiles) {
  for (const auto* const schedule : {"", "1f1b"}) {
    auto o = of(llama(), 2, 3);
    o.schedule = schedule;
    o.config.experts = {.count = 4, .chosen = 2};
    expect_serial(o, kFp64);
    o.config.experts = {};
    o.config.mlp_tiles = 3;
    o.config.vocab_tiles = 2;
    expect_serial(o, kFp64);
  }
}

TEST_F(TensorPieces, BudgetsAndOrdersChangeNoBit) {
  for (const auto& config : {gpt2(), llama()}) {
    auto o = of(config, 4, 3);
    o.micro_batches = 3;
    o.config.dtype = DType::fp32;
    expect_no_bit_changes_in_little_memory(o);
  }
}

TEST_F(TensorPieces, StagesOfDataRanksChangeNoBit) {
  auto o = of(gpt2(), 2, 2);
  o.config.dtype = DType::fp32;
  std::optional<TensorResult> first;
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
    o.data = {.ranks = 2, .zero = zero, .canonical = true};
    const auto result = run(o);
    if (!first) first = result;
    expect_same(*first, result, fmt::format("stage {}", zero));
  }
}

TEST_F(TensorPieces, AStoppedRunGoesOnWithOtherPieces) {
  auto o = of(llama(), 2, 3);
  o.steps = 4;
  auto expected = run(o);
  o.store = new_store();
  o.commit_after = 2;
  run_all(o);
  o.commit_after = 0;
  o.resume = true;
  const auto stopped = o.store;
  for (const std::uint32_t pieces : {3U, 1U, 4U}) {
    auto again = o;
    again.pieces = pieces;
    for (const auto* const rank : {"rank0", "rank1"}) again.reshard_from.push_back(stopped / rank);
    again.store = new_store();
    const auto resumed = run_all(again).front();
    auto later = expected;
    later.losses.erase(later.losses.begin(), later.losses.begin() + 2);
    later.norms.erase(later.norms.begin(), later.norms.begin() + 2);
    expect_equal(later, resumed, kFp64, fmt::format("{} pieces", pieces));
    if (pieces == 3) expect_same(later, resumed, "the same pieces");
  }
}

// For a block's four products, a step exchanges the same bytes as with --sp alone, in N calls each. The gradient of a norm
// covers a rank's rows.
TEST_F(TensorPieces, TheLedgerIsTheFormulaAndThePlan) {
  const std::uint64_t n = 2, m = 3, ranks = 2;
  for (const std::uint64_t pieces : {1U, 4U})
    for (const bool recompute : {false, true}) {
      auto o = of(gpt2(), ranks, static_cast<std::uint32_t>(pieces));
      o.batch = {2, 16};
      o.micro_batches = m;
      o.recompute = recompute;
      o.before_use = false;
      o.store = new_store();
      auto config = o.config;
      config.place = {.mesh = {.part = ranks}, .sequence = true, .pieces = o.pieces};
      const auto optimizer = make_optimizer(o.optimizer, {});
      const auto model = lm::make_model(config);
      const auto planned = plan(model, request_of(o, *optimizer, 0), {});
      const StepMap map(model, planned.map);
      std::map<comm::Operation, double> planned_bytes;
      for (const auto& action : planned.programs.steady.actions)
        for (const auto& exchange : mapping::exchanges_of(map, action))
          planned_bytes[exchange.operation] += mapping::link_bytes({}, exchange).within;
      const std::uint64_t tokens = 32, activation = tokens * 64 * sizeof(double), survey = m * ranks * tokens * sizeof(double);
      const std::uint64_t gathers = m * n * (recompute ? 8 : 6), sums = m * n * 4,
                          around = 2 * m;  // of the embedding, the head
      for (const auto& rank : run_all(o)) {
        const auto gathered = rank.step.of("tp", comm::Operation::all_gather),
                   scattered = rank.step.of("tp", comm::Operation::reduce_scatter);
        EXPECT_EQ(gathers * pieces + around + m, gathered.calls);
        EXPECT_EQ((gathers + around) * activation + survey, gathered.payload_bytes);
        EXPECT_EQ(sums * pieces + around, scattered.calls);
        EXPECT_EQ((sums + around) * activation, scattered.payload_bytes);
        EXPECT_EQ(planned_bytes[comm::Operation::all_gather], static_cast<double>(gathered.sent_bytes));
        EXPECT_EQ(planned_bytes[comm::Operation::reduce_scatter], static_cast<double>(scattered.sent_bytes));
      }
    }
}

TEST_F(TensorPieces, RanksPlanTheSameStepsInLittleMemory) {
  auto o = of(llama(), 4, 3);
  const auto optimizer = make_optimizer(o.optimizer, {});
  std::vector<Model> models;
  std::vector<Plan> plans;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    auto config = o.config;
    config.place = {.mesh = {.part = 2, .twin = 2}, .rank = rank, .sequence = true, .pieces = 3};
    models.push_back(lm::make_model(config));
    auto request = request_of(o, *optimizer, rank);
    request.budget.device = 2 * plan(models.back(), request, {}).smallest_bytes[Tier::device];
    request.recompute = request.offload = {};
    request.order = {};
    plans.push_back(for_rank(plan(models.back(), request, {}), models.back(), request, {}));
    ASSERT_TRUE(plans.back().fits) << plans.back().refusal.why;
    EXPECT_EQ(to_text(plans.front().programs.steady), to_text(plans.back().programs.steady));
  }
  std::deque<StepMap> maps;
  for (std::size_t r = 0; r < 4; ++r) maps.emplace_back(models[r], plans[r].map);
  std::vector<passes::RankProgram> ranks;
  for (std::size_t r = 0; r < 4; ++r) ranks.push_back({maps[r], plans[r].programs.steady});
  EXPECT_NO_THROW(passes::check_collectives(ranks));
}

// An exchange of a branch takes one unit, a product a hundred, all else nothing.
class LongProducts final : public walk::CostModel {
 public:
  explicit LongProducts(const StepMap& map) : map_(map) {}
  double seconds(const Action& a) const override {
    if (!is_layer_action(a.op)) return 0;
    if (map_.phases().exchanges(a)) return a.layer == 0 || a.layer + 1 == map_.layers() ? 0 : 1;
    return map_.phases().flops(a) > 0 ? 100 : 0;
  }

 private:
  const StepMap& map_;
};

// A branch has five exchanges in its forward and backward, of N calls each; three of the calls have no product to run beside.
TEST_F(TensorPieces, ASimulationHidesAllButThreeCallsOfALayer) {
  for (const std::uint32_t pieces : {2U, 3U, 4U, 8U}) {
    const auto o = of(gpt2(), 2, pieces);
    auto config = o.config;
    config.place = {.mesh = {.part = 2}, .sequence = true, .pieces = pieces};
    const auto optimizer = make_optimizer(o.optimizer, {});
    const auto model = lm::make_model(config);
    const auto request = request_of(o, *optimizer, 0);
    auto planned = plan(model, request, {});
    const StepMap map(model, planned.map);
    retime(planned, model, request, {}, LongProducts(map));
    const auto& communicated = planned.times.communicated;
    EXPECT_NEAR(2.0 * 4 * 5 * pieces, communicated.seconds, 1e-6) << "of micro-batches and branches";
    EXPECT_NEAR(1 - 3.0 / (5.0 * pieces), communicated.hidden(), 1e-9) << pieces;
  }
}

// The same in a run, where an exchange does not begin before the product beside which it should run.
TEST_F(TensorPieces, ExchangesRunBesideProductsInARun) {
  constexpr std::uint32_t kRanks = 2, kPieces = 4;
  const auto o = of(gpt2(), kRanks, kPieces);
  const auto counts = [](comm::Operation operation) {
    return operation == comm::Operation::all_gather || operation == comm::Operation::reduce_scatter;
  };
  std::vector<Beside> beside(kRanks);
  std::size_t expected = 0;
  const auto outcome = on_threads(kRanks, {90s}, [&](Rank& rank) {
    const auto r = static_cast<std::uint32_t>(rank.comm->rank());
    auto here = o.config;
    here.place = {.mesh = {.part = kRanks}, .rank = r, .sequence = true, .pieces = kPieces};
    auto model = lm::make_model(here);
    for (auto& layer : model.layers)
      if (layer->name().starts_with("layers.")) layer = std::make_unique<Watched>(std::move(layer), beside[r]);
    const auto optimizer = make_optimizer("adamw", {});
    const auto request = request_of(o, *optimizer, r);
    const auto planned = for_rank(plan(model, request, {}), model, request, {});
    const StepMap map(model, planned.map);
    GatedCommunicator ranks(std::move(rank.comm), beside[r], counts);
    Engine engine(model, planned,
                  {.device = &rank.device,
                   .store = {.paths = {folder_}, .name = fmt::format("rank{}", r), .temporary = true},
                   .optimizer = optimizer.get(),
                   .communicator = &ranks});
    engine.fill(random_weights(7));
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(map.options().shape.batch.tokens()) * o.micro_batches, 1);
    const auto partners = partners_of(map, planned.programs.first, counts);
    if (r == 0) expected = partners.size();
    beside[r].begin(partners);
    engine.step({.tokens = ids, .targets = ids});
  });
  for (const auto& error : outcome) ASSERT_EQ(error, "");
  EXPECT_EQ(o.micro_batches * 4 * (5 * kPieces - 3), expected);  // of the branches of two blocks
  for (const auto& of_rank : beside) EXPECT_EQ(expected, of_rank.met());
}

TEST_F(TensorPieces, WhatItCannotDoIsRefused) {
  const auto why = [&](const auto& change) -> std::string {
    auto o = of(llama(), 2, 2);
    change(o);
    try {
      auto config = o.config;
      config.place = {.mesh = mesh_of(o), .sequence = o.sequence, .pieces = o.pieces, .cube = o.grid.cube};
      const auto model = lm::make_model(config);
      const auto optimizer = make_optimizer(o.optimizer, {});
      plan(model, request_of(o, *optimizer, 0), {});
      return "";
    } catch (const Error& e) {
      EXPECT_EQ(ErrorKind::refused, e.kind());
      return e.what();
    }
  };
  EXPECT_EQ("", why([](TensorRun&) {}));
  EXPECT_EQ("", why([](TensorRun& o) { o.pieces = 24; }));
  EXPECT_THAT(why([](TensorRun& o) { o.pieces = 25; }), HasSubstr("`tp-overlap` 25: a rank has 24 rows"));
  EXPECT_THAT(why([](TensorRun& o) { o.sequence = false; }), HasSubstr("give `sp`, too"));
  EXPECT_THAT(why([](TensorRun& o) { o.tensor_ranks = 1, o.sequence = false; }), HasSubstr("give `tp` 2 or more"));
  EXPECT_THAT(why([](TensorRun& o) { o.tensor_ranks = 4, o.batch = {4, 16}, o.grid = {.side = 2}; }), HasSubstr("`tp-mode`"));
  EXPECT_THAT(why([](TensorRun& o) { o.pieces = 0; }), HasSubstr("at least one piece"));
}

}  // namespace
}  // namespace terrace::test
