// Sequence parallelism whose exchanges run in pieces beside the products trains what one rank trains, moves the same bytes as
// without pieces, and hides all but three calls of each layer's exchanges.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <terrace/tests/parallel/tensor/tensor_plans.h>

namespace terrace::test {
namespace {

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
  const auto expected = end_of(run(o), 2);
  const auto stopped = stopped_after(2, o);
  for (const std::uint32_t pieces : {3U, 1U, 4U}) {
    auto again = stopped;
    again.pieces = pieces;
    const auto resumed = resume_as(again, stopped);
    expect_equal(expected, resumed, kFp64, fmt::format("{} pieces", pieces));
    if (pieces == 3) expect_same(expected, resumed, "the same pieces");
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
      auto planned = planned_bytes(o);
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
        EXPECT_EQ(planned[comm::Operation::all_gather], static_cast<double>(gathered.sent_bytes));
        EXPECT_EQ(planned[comm::Operation::reduce_scatter], static_cast<double>(scattered.sent_bytes));
      }
    }
}

TEST_F(TensorPieces, RanksPlanTheSameStepsInLittleMemory) {
  const auto o = of(llama(), 4, 3);
  expect_ranks_agree(o, {2 * plan_of(o).smallest[Tier::device], kUnlimited, 0});
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
    const auto optimizer = make_optimizer(o.optimizer, {});
    const auto model = model_of(config_of(o, 0));
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
  const auto expected = step_beside(
      o, folder_, beside, [](const std::string& layer) { return layer.starts_with("layers."); }, counts);
  EXPECT_EQ(o.micro_batches * 4 * (5 * kPieces - 3), expected);  // of the branches of two blocks
  for (const auto& of_rank : beside) EXPECT_EQ(expected, of_rank.met());
}

TEST_F(TensorPieces, WhatItCannotDoIsRefused) {
  const auto why = [](const auto& change) {
    auto o = of(llama(), 2, 2);
    change(o);
    return refusal_of(o);
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
