// A pipeline moves computations between ranks and never changes them: every order, on every number of ranks and stages, gives
// the bits of one rank that accumulates the same micro-batches.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdlib>
#include <map>

#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/tests/support/covering_rows.h>

#include "pipeline_run.h"

namespace terrace {
namespace {

using PipelineRun = test::PipelineRun;

constexpr const char* kOrders[] = {"layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};

// Local stages, micro-batches, ranks: what broke others. Local stages are those of the interleaved order.
TEST_F(PipelineRun, EverySynchronousOrderGivesTheBitsOfOneRank) {
  struct Case {
    std::uint32_t chunks, micro_batches, ranks;
  };
  const Case cases[] = {{2, 2, 2},  {2, 4, 4},  {2, 8, 2},  {2, 8, 4},   {2, 8, 8},  {4, 4, 4},
                        {4, 8, 4},  {4, 16, 4}, {4, 64, 4}, {4, 16, 16}, {3, 2, 2},  {3, 8, 2},
                        {3, 12, 4}, {4, 6, 3},  {4, 10, 5}, {2, 3, 4},   {2, 10, 4}, {2, 15, 4}};
  std::size_t at = 0;
  for (const auto& c : cases) {
    toy::RunOptions base;
    base.steps = 2;
    // Fewer layers than stages, in every third case: some stages have none.
    base.sizes = {.width = 16, .vocab = 33, .blocks = at % 3 == 0 ? 3 : static_cast<std::int64_t>(c.chunks * c.ranks)};
    base.sizes.tied = at % 4 != 3;
    base.sizes.dtype = at % 2 == 0 ? DType::fp32 : DType::bf16;
    base.shape = {{1, 4}, c.micro_batches};
    base.evaluate_between = true;
    base.evaluate_batches = 1 + static_cast<std::uint32_t>(at) % 7;  // one, as many as a step has, or more
    const auto one = run(base, "one rank");
    // The interleaved order always, the others in turn.
    for (const auto* const order : {"interleaved", kOrders[at % 7], kOrders[(at + 4) % 7]}) {
      const std::string name = order;
      if (name == "dualpipe-v" && c.micro_batches < 2 * c.ranks) continue;
      auto o = base;
      o.pipeline = test::pipeline_of(name, c.ranks, c.micro_batches, c.chunks, o.sizes.blocks);
      const auto what =
          fmt::format("{} on {} ranks, {} stages each, {} micro-batches", name, c.ranks, c.chunks, c.micro_batches);
      expect_same(one, run(o, what), what);
    }
    ++at;
  }
}

// Every two settings together, in some row: numbers, orders, tiers, updates, recomputation, distances, data ranks and ZeRO.
TEST_F(PipelineRun, EveryTwoSettingsTogether) {
  struct Numbers {
    DType dtype;
    const char* recipe;
  };
  const Numbers numbers[] = {{DType::fp32, "fp32"}, {DType::bf16, "fp32"}, {DType::fp64, "fp32"}, {DType::bf16, "split"}};
  struct Data {
    std::uint32_t ranks, zero, shard_group;
  };
  const Data data[] = {{1, 0, 0}, {2, 0, 0}, {2, 1, 0}, {2, 2, 0}, {2, 3, 0}, {4, 1, 2}, {4, 3, 2}};
  const test::CoveringRows covering({4, 7, 3, 2, 2, 3, 7, 2, 2}, 2);
  std::map<std::string, toy::RunResult> references;
  std::uint64_t read = 0;
  for (const auto& row : covering.rows()) {
    const auto at = [&](std::size_t factor) { return static_cast<std::size_t>(row[factor]); };
    toy::RunOptions o;
    o.steps = 2;
    o.sizes.blocks = 4;
    o.sizes.dtype = numbers[at(0)].dtype;
    o.recipe = numbers[at(0)].recipe;
    const std::string order = kOrders[at(1)];
    const int tiers = row[2];
    o.before_use = row[3] == 0;
    o.recompute = row[4] == 1;
    o.depth = row[5] == 0 ? 0 : row[5] == 1 ? kAutoDepth : 4;
    o.data = {.ranks = data[at(6)].ranks, .zero = data[at(6)].zero, .canonical = true, .shard_group = data[at(6)].shard_group};
    o.sizes.tied = row[7] == 0;
    const std::uint32_t ranks = row[8] == 0 ? 2 : 3;
    constexpr std::uint32_t kMicroBatches = 24;
    o.shape = {{1, 8}, kMicroBatches / o.data.ranks};

    auto plain = o;
    plain.recompute = false;
    plain.depth = 1;
    plain.data = {.canonical = true};
    plain.shape.micro_batches = kMicroBatches;
    const auto key = fmt::format("{} {} {} {}", row[0], o.recipe, o.before_use, o.sizes.tied);
    if (!references.contains(key)) references[key] = run(plain, key);

    o.pipeline = test::pipeline_of(order, ranks, o.shape.micro_batches, 2, o.sizes.blocks);
    const auto what = fmt::format("{} on {} × {} ranks, ZeRO-{}, {} {}, tiers {}{}{}{}, depth {}", order, ranks, o.data.ranks,
                                  o.data.zero, name_of(o.sizes.dtype), o.recipe, tiers, o.before_use ? ", clipped" : "",
                                  o.recompute ? ", recomputed" : "", o.sizes.tied ? ", tied" : "", row[5]);
    if (tiers > 0) test::squeeze_stages(o, tiers == 2);
    read += expect_same_within(o, references[key], what);
  }
  EXPECT_GE(covering.rows().size(), 35U);
  EXPECT_GT(read, 0U);
}

// Optimizers that sum over a layer, whose first and last layers are none of some ranks', and which a layer's data ranks share.
TEST_F(PipelineRun, WholeLayerOptimizersInStagesGiveTheBitsOfOneRank) {
  constexpr const char* kOptimizers[] = {"lamb", "adafactor", "muon"};
  constexpr const char* kSome[] = {"gpipe", "1f1b", "interleaved", "zb-v"};
  struct Data {
    std::uint32_t ranks, zero, shard_group;
  };
  const Data data[] = {{1, 0, 0}, {2, 0, 0}, {2, 1, 0}, {2, 2, 0}, {2, 3, 0}, {4, 3, 2}};
  const test::CoveringRows covering({3, 4, 6, 3, 2, 2, 2, 2}, 2);
  std::map<std::string, toy::RunResult> references;
  std::uint64_t read = 0;
  for (const auto& row : covering.rows()) {
    const auto at = [&](std::size_t factor) { return static_cast<std::size_t>(row[factor]); };
    const std::string optimizer = kOptimizers[at(0)], order = kSome[at(1)];
    const auto& d = data[at(2)];
    const int tiers = row[3];
    toy::RunOptions o;
    o.steps = 2;
    o.sizes.blocks = 10;  // more than fits into a rank's host at once
    o.make_optimizer = [=] { return make_optimizer(optimizer, {}); };
    o.before_use = row[4] == 0;
    o.sizes.tied = row[5] == 0;
    const std::uint32_t ranks = row[6] == 0 ? 2 : 3;
    o.sizes.dtype = row[7] == 0 ? DType::fp32 : DType::bf16;
    o.recipe = row[7] == 0 ? "fp32" : "split-8bit";
    o.data = {.ranks = d.ranks, .zero = d.zero, .canonical = true, .shard_group = d.shard_group};
    constexpr std::uint32_t kMicroBatches = 12;
    o.shape = {{1, 8}, kMicroBatches / d.ranks};

    auto plain = o;
    plain.data = {.canonical = true};
    plain.shape.micro_batches = kMicroBatches;
    const auto key =
        fmt::format("{} {}{}{}", optimizer, o.recipe, o.before_use ? ", clipped" : "", o.sizes.tied ? ", tied" : "");
    if (!references.contains(key)) references[key] = run(plain, key);

    o.pipeline = test::pipeline_of(order, ranks, o.shape.micro_batches, 2, o.sizes.blocks);
    const auto what = fmt::format("{}, {} on {} × {} ranks, ZeRO-{} in groups of {}, tiers {}", key, order, ranks, d.ranks,
                                  d.zero, d.shard_group, tiers);
    if (tiers > 0) test::squeeze_stages(o, tiers == 2);
    read += expect_same_within(o, references[key], what);
  }
  EXPECT_GE(covering.rows().size(), 24U);
  EXPECT_GT(read, 0U);
}

// Chimera: each stage on two ranks, which compute every other micro-batch and fold their gradients in turn.
TEST_F(PipelineRun, TwoDirectionsFoldedInTurnGiveTheBitsOfOneRank) {
  struct Case {
    std::uint32_t ranks, micro_batches;
    DType dtype;
    bool tied, before_use, recompute;
    int tiers;
    std::uint32_t data, zero = 0, shard_group = 0;
  };
  for (const auto& c : {Case{2, 2, DType::fp32, true, true, false, 0, 1},
                        {2, 4, DType::fp32, true, true, false, 0, 2, 1},
                        {4, 4, DType::bf16, true, false, false, 2, 2, 1},
                        {4, 4, DType::fp64, false, true, false, 1, 3, 1},
                        {2, 4, DType::bf16, true, true, true, 2, 2, 3},
                        {4, 4, DType::fp32, true, false, false, 0, 2, 3},
                        {4, 2, DType::fp32, false, true, false, 1, 3, 3},
                        {2, 4, DType::fp32, true, true, false, 0, 4, 1, 2},
                        {2, 4, DType::fp32, true, true, false, 0, 4, 3, 2},
                        {2, 8, DType::bf16, true, false, true, 1, 1},
                        {4, 4, DType::fp64, false, true, false, 2, 1},
                        {4, 8, DType::bf16, true, true, false, 2, 2},
                        {4, 16, DType::fp32, true, false, false, 0, 1},
                        {4, 6, DType::fp32, false, true, true, 1, 3},
                        {6, 4, DType::fp32, true, true, false, 0, 1},
                        {8, 8, DType::bf16, true, true, false, 0, 1}}) {
    toy::RunOptions base;
    base.steps = 3;
    base.sizes.blocks = c.ranks;
    base.sizes.dtype = c.dtype;
    base.sizes.tied = c.tied;
    base.before_use = c.before_use;
    base.evaluate_between = true;
    base.evaluate_batches = c.data == 1 ? 5 : 1;
    base.data.canonical = true;
    base.shape = {{1, 8}, c.micro_batches * c.data};
    const auto one = run(base, "one rank");
    auto o = base;
    o.recompute = c.recompute;
    o.data.ranks = c.data;
    o.data.zero = c.zero;
    o.data.shard_group = c.shard_group;
    o.evaluate_between = c.data == 1;  // else each data rank's
    o.shape.micro_batches = c.micro_batches;
    o.pipeline = test::pipeline_of("chimera", c.ranks, c.micro_batches, 1, o.sizes.blocks);
    const auto what = fmt::format("chimera on {} × {} ranks, ZeRO-{}, {} micro-batches, {}{}, tiers {}", c.ranks, c.data,
                                  c.zero, c.micro_batches, name_of(c.dtype), c.tied ? ", tied" : "", c.tiers);
    if (c.tiers > 0) test::squeeze_stages(o, c.tiers == 2);
    auto two = run(o, what);
    if (c.data != 1) two.losses.insert(two.losses.begin() + 2, one.losses[2]);
    expect_same(one, two, what);
    EXPECT_LE(two.peak[Tier::device], o.budget.device) << what;
    EXPECT_LE(two.peak[Tier::host], o.budget.host) << what;
  }
}

// What the search may find: two directions whose backwards come in halves.
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

// Without canonical reduction each direction sums its own, and the sums meet once: two data ranks' all-reduce.
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
        if (map.pipeline().holds(l))  // of states its own chunk of each group
          bytes += (is_optimizer_state(kind) ? map.layout().groups_of(l) : map.layout().chunks_of(l)) *
                   map.chunks()[map.state(kind, l, map.data().own(0))].bytes;
    EXPECT_EQ(sharded.planned.state_bytes, bytes) << what;
  }
}

// Without canonical reduction: the same bits in every stage of ZeRO, and those of the same shards without a pipeline.
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

// What an order's formula says of rank r: exactly, or at most.
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

// Counted by the executors as their computations begin and end; by the simulator; by the orders' formulas.
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

// Every order that these degrees allow, with messages that are late by chance: nobody waits for ever, and no bit depends on who
// comes when. One in twelve of them, all where long tests are wanted.
TEST_F(PipelineRun, NoDelayOfAMessageChangesAnything) {
  const auto* const wanted = std::getenv("TERRACE_SEED");
  const std::uint64_t seed = wanted ? std::strtoull(wanted, nullptr, 10) : 1;
  const std::size_t stride = std::getenv("TERRACE_LONG_TESTS") ? 1 : 12;
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

// A store that is opened again holds a rank's stages.
TEST_F(PipelineRun, ResumesWhereItStopped) {
  toy::RunOptions o;
  o.steps = 5;
  o.sizes.blocks = 4;
  constexpr std::uint32_t kMicroBatches = 8;
  o.shape = {{1, 8}, kMicroBatches};
  const auto whole = run(o, "one rank");
  struct Case {
    const char* order;
    std::uint32_t ranks, data, zero;
  };
  for (const auto& [order, ranks, data, zero] :
       {Case{"zb-h1", 3, 1, 0}, {"chimera", 4, 1, 0}, {"chimera", 2, 2, 1}, {"chimera", 2, 2, 3}}) {
    SCOPED_TRACE(fmt::format("{}, ZeRO-{}", order, zero));
    o.shape.micro_batches = kMicroBatches / data;
    o.pipeline = test::pipeline_of(order, ranks, o.shape.micro_batches, 1, o.sizes.blocks);
    // The stages of two directions are in two stores each.
    o.data = {.ranks = data, .zero = zero, .canonical = std::string(order) == "chimera"};
    o.store = folder_ / fmt::format("{}-{}", order, zero);
    test::expect_resumed(o, whole);
  }
}

// A step whose loss is not finite is no rank's: all leave it out.
TEST_F(PipelineRun, EveryRankSkipsTheSameStep) {
  toy::RunOptions o;
  o.sizes.blocks = 3;
  o.shape = {{1, 8}, 4};
  o.left_out_step = 3;
  const auto without = run(o, "without the step");
  o.left_out_step = 0;
  o.not_finite_step = 3;
  o.pipeline = test::pipeline_of("1f1b", 3, 4, 1, o.sizes.blocks);
  const auto with = run(o, "with the step");
  EXPECT_EQ(with.hash, without.hash);
}

}  // namespace
}  // namespace terrace
