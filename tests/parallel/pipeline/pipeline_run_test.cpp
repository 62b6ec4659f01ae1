// A pipeline moves computations between ranks and never changes them: every order, on many numbers of ranks and stages, gives
// the bits of one rank that accumulates the same micro-batches. (one_rank_bits_test.cpp has the other settings.)
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/tests/support/one_in.h>

#include <terrace/tests/parallel/pipeline/pipeline_run.h>

namespace terrace {
namespace {

using PipelineRun = test::PipelineRun;

constexpr const char* kOrders[] = {"layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};

// More ranks, stages and micro-batches than in one_rank_bits_test.cpp. Only `interleaved` takes the number of chunks; other
// orders have their own number of stages. In two cases some stages have no layers.
TEST_F(PipelineRun, ManyRanksGiveTheBitsOfOneRank) {
  struct Case {
    std::uint32_t chunks, micro_batches, ranks;
    std::int64_t blocks;
    std::vector<const char*> orders;
  };
  const Case cases[] = {{2, 8, 8, 3, {"interleaved", "zb-v"}},
                        {4, 64, 4, 16, {"interleaved", "1f1b", "dualpipe-v"}},
                        {4, 16, 16, 64, {"interleaved", "gpipe"}},
                        {4, 10, 5, 20, {"interleaved", "zb-h1", "dualpipe-v"}},
                        {2, 15, 4, 3, {"interleaved", "layerwise"}},
                        {1, 4, 6, 6, {"chimera"}},
                        {1, 8, 8, 8, {"chimera"}}};
  for (const auto& c : cases) {
    toy::RunOptions base;
    base.steps = 2;
    base.sizes = {.width = 16, .vocab = 33, .blocks = c.blocks};
    base.sizes.dtype = c.ranks == 8 ? DType::bf16 : DType::fp32;
    base.shape = {{1, 4}, c.micro_batches};
    base.data.canonical = c.chunks == 1;
    base.evaluate_between = true;
    base.evaluate_batches = 7;
    const auto one = run(base, "one rank");
    for (const std::string order : c.orders) {
      auto o = base;
      o.pipeline = test::pipeline_of(order, c.ranks, c.micro_batches, c.chunks, c.blocks);
      const auto what = fmt::format("{} on {} ranks, {} micro-batches", order, c.ranks, c.micro_batches);
      expect_same(one, run(o, what), what);
    }
  }
}

TEST_F(PipelineRun, TwoDirectionsDoNotShardGradients) {
  toy::RunOptions o;
  o.shape = {{1, 8}, 4};
  o.data = {.ranks = 2, .zero = 2, .canonical = true};
  o.pipeline = test::pipeline_of("chimera", 2, 4, 1, o.sizes.blocks);
  EXPECT_THROW(static_cast<void>(plan(toy::make_model(o.sizes), toy::request_of(o), o.profile)), Error);
}

// The search may find two directions whose backwards are split in halves.
TEST_F(PipelineRun, TwoDirectionsInHalvesGiveTheBitsOfOneRank) {
  struct Case {
    std::uint32_t ranks, micro_batches;
    bool tied, disk;
  };
  for (const auto& c : {Case{2, 6, true, false}, {4, 8, true, false}, {4, 4, false, true}, {6, 10, true, false}}) {
    toy::RunOptions base;
    base.steps = 2;
    base.sizes.blocks = 2 * c.ranks;
    base.sizes.tied = c.tied;
    base.data.canonical = true;
    base.shape = {{1, 8}, c.micro_batches};
    const auto one = run(base, "one rank");
    auto o = base;
    const pipeline::StageCosts costs{.reduction = {{0.1, 0.1}}, .last_reduction = {{0.1, 0.1}}};
    const auto schedule = pipeline::best_list_schedule(pipeline::both_directions(c.ranks),
                                                       {.micro_batches = c.micro_batches, .cap = c.ranks, .costs = costs});
    const std::vector<double> even(static_cast<std::size_t>(o.sizes.blocks) + 2, 1.0);
    o.pipeline = {schedule, pipeline::balance(even, c.ranks)};
    if (c.disk) test::squeeze_stages(o, true);
    const auto what = fmt::format("two directions on {} ranks, {} micro-batches", c.ranks, c.micro_batches);
    expect_same(one, run(o, what), what);
  }
}

// Without canonical reduction each direction sums its own gradients, and the two sums are added once, as in an all-reduce of
// two data ranks.
TEST_F(PipelineRun, TwoDirectionsThatMeetOnceAreTheBitsOfTwoDataRanks) {
  for (const auto& [ranks, micro_batches] : {std::pair{2U, 2U}, {2U, 6U}, {4U, 4U}, {4U, 12U}}) {
    toy::RunOptions base;
    base.steps = 3;
    base.sizes.blocks = 4;
    base.shape = {{1, 8}, micro_batches / 2};
    base.data = {.ranks = 2};
    const auto data = run(base, "two data ranks");
    auto o = base;
    o.data = {};
    o.shape.micro_batches = micro_batches;
    o.pipeline = test::pipeline_of("chimera", ranks, micro_batches, 1, o.sizes.blocks);
    const auto what = fmt::format("chimera on {} ranks, {} micro-batches", ranks, micro_batches);
    expect_same(data, run(o, what), what);
    o.data.ranks = 2;
    const auto whole = run(o, what + ", two data ranks");
    o.data.zero = 1;
    const auto sharded = run(o, what + ", ZeRO-1");
    expect_same(whole, sharded, what + ", ZeRO-1");
    const auto model = toy::make_model(o.sizes);
    const StepMap map(model, sharded.planned.map);
    std::uint64_t bytes = map.layout().tied_groups() * map.data().group() * map.chunks()[map.tied_gradients()].bytes;
    for (std::uint32_t l = 0; l < map.layers(); ++l)
      for (const auto kind : map.options().recipe.kinds())
        if (map.pipeline().holds(l))  // of optimizer states, only its own chunk of each group
          bytes += (rules::is_optimizer_state(kind) ? map.layout().groups_of(l) : map.layout().chunks_of(l)) *
                   map.chunks()[map.state(kind, l, map.data().own(0))].bytes;
    EXPECT_EQ(sharded.planned.state_bytes, bytes) << what;
  }
}

// Without canonical reduction, all ZeRO stages give the same bits: those of the same shards without a pipeline.
TEST_F(PipelineRun, HybridShardsInStagesAreTheBitsOfHybridShards) {
  for (const std::string order : {"1f1b", "zb-h1"})
    for (const auto& [ranks, group] : {std::pair{4U, 2U}, {6U, 3U}}) {
      toy::RunOptions base;
      base.steps = 3;
      base.shape = {{1, 8}, 1};
      base.data = {.ranks = ranks, .zero = 1, .shard_group = group};
      const auto alone = run(base, "no pipeline");
      for (const std::uint32_t zero : {1U, 2U, 3U}) {
        auto o = base;
        o.data.zero = zero;
        o.pipeline = test::pipeline_of(order, 2, 1, 1, o.sizes.blocks);
        const auto what = fmt::format("{} on 2 × {} ranks in groups of {}, ZeRO-{}", order, ranks, group, zero);
        expect_same(alone, run(o, what), what);
      }
    }
}

// The live activations of rank r by the order's formula: exact, or an upper limit.
struct LiveFormula {
  std::uint32_t live;
  bool exact;
};
LiveFormula live_formula(const std::string& order, std::uint32_t p, std::uint32_t m, std::uint32_t v, std::uint32_t r) {
  if (order == "layerwise") return {1, true};
  if (order == "gpipe") return {m, true};
  if (order == "1f1b") return {std::min(m, p - r), true};
  if (order == "interleaved") return {std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1), true};
  if (order == "zb-h1") return {p, false};
  if (order == "zb-v") return {2 * p, false};
  if (order == "chimera") return {m == p ? p / 2 + 1 + std::min(r, p - 1 - r) : p, m == p};
  return {2 * p + 1, false};  // dualpipe-v
}

// Compares three counts: the executors', taken as their computations begin and end; the simulator's; and the orders' formulas.
TEST_F(PipelineRun, PeakOfLiveActivationsIsTheSimulatedOneAndTheFormulas) {
  struct Degrees {
    std::uint32_t ranks, micro_batches, chunks;
  };
  std::vector<std::tuple<Degrees, std::string>> cases;
  for (const auto& degrees : {Degrees{2, 4, 2}, {3, 6, 3}, {4, 8, 2}})
    for (const auto* const order : kOrders) cases.emplace_back(degrees, order);
  for (const auto& degrees : {Degrees{2, 2, 1}, {4, 4, 1}, {4, 8, 1}, {8, 8, 1}}) cases.emplace_back(degrees, "chimera");
  for (const auto& [degrees, order] : cases) {
    const auto& [p, m, v] = degrees;
    const auto what = fmt::format("{} on {} ranks, {} micro-batches, {} stages each", order, p, m, v);
    toy::RunOptions o;
    o.steps = 2;
    o.sizes = {.width = 16, .vocab = 33, .blocks = p * v * 2};
    o.shape = {{1, 4}, m};
    o.pipeline = test::pipeline_of(order, p, m, v, o.sizes.blocks);
    o.store = folder_ / ("run" + std::to_string(runs_++));
    o.commit_at_end = false;
    const auto all = toy::run_ranks(o);
    const auto simulated = pipeline::simulate(o.pipeline->schedule, {});
    const auto model = toy::make_model(o.sizes);
    std::uint32_t most = 0;
    for (std::uint32_t r = 0; r < p; ++r) {
      ASSERT_EQ(all.errors[r], "") << what << ", rank " << r;
      const auto formula = live_formula(order, p, m, v, r);
      const auto& result = all.ranks[r];
      const StepMap map(model, result.planned.map);
      for (const auto& live : result.live) {
        EXPECT_EQ(live.activations, simulated.peak_live[r]) << what << ", rank " << r;
        EXPECT_EQ(live.bytes, test::most_bytes(*o.pipeline, r, map)) << what << ", rank " << r;
        if (formula.exact) {
          EXPECT_EQ(live.activations, formula.live) << what << ", rank " << r;
        }
        EXPECT_LE(live.activations, formula.live) << what << ", rank " << r;
        most = std::max(most, live.activations);
      }
    }
    EXPECT_GE(most + 1, live_formula(order, p, m, v, 0).live) << what << ": the formula is far from what was measured";
  }
}

// Every order that these degrees allow, with messages that are late at random: nothing deadlocks, and no bit depends on the
// order of arrival. Runs one in twelve of them; the long form runs all.
TEST_F(PipelineRun, NoDelayOfAMessageChangesAnything) {
  const auto* const wanted = std::getenv("TERRACE_SEED");
  const std::uint64_t seed = wanted ? std::strtoull(wanted, nullptr, 10) : 1;
  const std::size_t stride = test::long_form() ? 1 : 12;
  std::map<std::uint32_t, toy::RunResult> references;  // by micro-batches
  std::size_t programs = 0, runs = 0;
  for (std::uint32_t p = 2; p <= 6; ++p)
    for (std::uint32_t m = 1; m <= 16; ++m)
      for (const auto& [order, chunks] : std::vector<std::pair<std::string, std::uint32_t>>{{"gpipe", 1},
                                                                                            {"1f1b", 1},
                                                                                            {"zb-h1", 1},
                                                                                            {"interleaved", 2},
                                                                                            {"interleaved", 3},
                                                                                            {"dualpipe-v", 2},
                                                                                            {"chimera", 1}}) {
        if (order == "dualpipe-v" && m < 2 * p) continue;
        if (order == "chimera" && (p % 2 != 0 || m % 2 != 0)) continue;
        if (programs++ % stride != seed % stride) continue;
        ++runs;
        toy::RunOptions o;
        o.steps = 1;
        o.depth = 1;
        o.sizes = {.width = 16, .vocab = 33, .blocks = 10};
        o.shape = {{1, 4}, m};
        if (!references.contains(m)) references[m] = run(o, "one rank");
        o.data.canonical = order == "chimera";
        o.pipeline = test::pipeline_of(order, p, m, chunks, o.sizes.blocks);
        const auto what = fmt::format("{} on {} ranks, {} stages each, {} micro-batches, seed {}", order, p, chunks, m, seed);
        const auto late = run(o, what, {.seed = seed + programs, .longest_delay = std::chrono::microseconds(500)});
        expect_same(references[m], late, what);
      }
  EXPECT_GE(runs * stride, 329U + 24U);
}

}  // namespace
}  // namespace terrace
