// Asynchronous orders change what is computed, and say how: losses, norms and weights are the bits of one rank that computes
// every micro-batch with the old weights that the order declares, for every number of ranks and under every budget.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdlib>

#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/pipeline.h>

#include "pipeline_run.h"
#include "stale_oracle.h"

namespace terrace {
namespace {

struct Case {
  std::uint32_t ranks, micro_batches, updates;  // micro-batches of an update, updates of a step
};
std::string to_text(const std::string& order, const Case& c) {
  return fmt::format("{} on {} ranks, {} updates of {} micro-batches", order, c.ranks, c.updates, c.micro_batches);
}

// What the papers say, and not what the order wrote: an update is a mini-batch.
std::uint32_t published_version(const std::string& order, const Case& c, std::uint32_t stage, std::uint32_t micro_batch) {
  const int update = static_cast<int>(micro_batch / c.micro_batches);
  if (order == "pipedream-2bw") return static_cast<std::uint32_t>(std::max(0, update - 1));
  // Narayanan 2019: mini-batch i uses version max(0, i − (p − 1 − s)); groups of them as many as are whole by then.
  const int behind = static_cast<int>(micro_batch) - static_cast<int>(c.ranks - 1 - stage);
  return static_cast<std::uint32_t>(std::max(0, behind) / static_cast<int>(c.micro_batches));
}

class AsynchronousRun : public test::FolderTest {
 protected:
  toy::RunOptions options(const std::string& order, const Case& c) {
    toy::RunOptions o;
    o.sizes = {.width = 16, .vocab = 33, .blocks = static_cast<std::int64_t>(c.ranks), .tied = false};
    o.steps = 2;
    o.shape = {{1, 4}, c.micro_batches * c.updates};
    o.before_use = false;
    const auto schedule =
        pipeline::write_order(order, {.ranks = c.ranks, .micro_batches = c.micro_batches, .updates = c.updates});
    const std::vector<double> costs(static_cast<std::size_t>(o.sizes.blocks) + 2, 1.0);
    o.pipeline = {schedule, pipeline::balance(costs, schedule.placement.stages)};
    return o;
  }
  // Data ranks take turns: of d of them, the pipelines' micro-batch i is the d of the global ones from i · d on.
  static toy::StaleOracle::Result oracle(toy::RunOptions o, const std::string& order, const Case& c) {
    const auto part = pipeline::part_of(*o.pipeline, 0);
    const auto ranks = o.data.ranks;
    o.shape.micro_batches *= ranks;
    return toy::StaleOracle(
               o, c.micro_batches * ranks,
               [&](std::uint32_t layer, std::uint32_t m) { return published_version(order, c, part.stage(layer), m / ranks); })
        .run();
  }
  std::vector<toy::RunResult> run(toy::RunOptions o, const std::string& what) {
    o.store = folder_ / ("run" + std::to_string(runs_++));
    o.commit_at_end = o.disk_tier;
    const auto all = toy::run_ranks(o);
    for (std::size_t r = 0; r < all.errors.size(); ++r) EXPECT_EQ(all.errors[r], "") << what << ", rank " << r;
    std::filesystem::remove_all(o.store);
    return all.ranks;
  }
  void expect_declared(const toy::RunOptions& o, const std::string& order, const Case& c, const std::string& what) {
    const auto wanted = oracle(o, order, c);
    const auto ranks = run(o, what);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      ASSERT_TRUE(ranks[r].planned.fits) << what << ", rank " << r << ": " << ranks[r].planned.refusal.why;
      EXPECT_EQ(ranks[r].losses, wanted.losses) << what << ", rank " << r;
      EXPECT_EQ(ranks[r].norms, wanted.norms) << what << ", rank " << r;
      EXPECT_EQ(ranks[r].hash, wanted.hash) << what << ", rank " << r;
      EXPECT_LE(ranks[r].peak[Tier::device], o.budget.device) << what << ", rank " << r;
      EXPECT_LE(ranks[r].peak[Tier::host], o.budget.host) << what << ", rank " << r;
    }
  }
  int runs_ = 0;
};

// (m, p) of the cases that broke others, where every stage has made its weights in time.
TEST_F(AsynchronousRun, TwoBufferedWeightsAreThoseOfTheDeclaredStaleness) {
  const Case cases[] = {{1, 2, 3},  {2, 2, 1}, {2, 2, 2},  {2, 8, 3},  {3, 3, 4},  {4, 4, 3},
                        {4, 16, 2}, {3, 6, 3}, {5, 10, 2}, {4, 10, 2}, {4, 15, 2}, {8, 8, 2}};
  std::size_t at = 0;
  for (const auto& c : cases) {
    auto o = options("pipedream-2bw", c);
    o.sizes.dtype = at % 3 == 0 ? DType::fp32 : at % 3 == 1 ? DType::bf16 : DType::fp64;
    o.before_use = at % 2 == 0;  // clipped
    o.recompute = at % 4 == 1;
    expect_declared(o, "pipedream-2bw", c, to_text("pipedream-2bw", c));
    ++at;
  }
}

TEST_F(AsynchronousRun, StashedWeightsAreThoseOfTheDeclaredStaleness) {
  const Case cases[] = {{1, 1, 4}, {2, 1, 2}, {2, 1, 8}, {4, 1, 8}, {3, 1, 12}, {4, 1, 2},
                        {8, 1, 8}, {2, 2, 4}, {3, 2, 5}, {4, 3, 4}, {5, 1, 10}, {4, 4, 3}};
  std::size_t at = 0;
  for (const auto& c : cases) {
    auto o = options("pipedream", c);
    o.sizes.dtype = at % 3 == 0 ? DType::fp32 : at % 3 == 1 ? DType::bf16 : DType::fp64;
    o.recompute = at % 4 == 1;
    expect_declared(o, "pipedream", c, to_text("pipedream", c));
    ++at;
  }
}

// Several data ranks a stage: its gradients are folded in the order of the global micro-batches, and the update is everybody's.
TEST_F(AsynchronousRun, DataRanksOfAStageFoldTheirGradients) {
  struct Row {
    const char* order;
    Case c;
    std::uint32_t data;
    DType dtype;
    bool clipped;
  };
  for (const auto& row : {Row{"pipedream-2bw", {2, 2, 3}, 2, DType::fp32, true},
                          {"pipedream-2bw", {3, 4, 2}, 2, DType::bf16, true},
                          {"pipedream-2bw", {2, 3, 3}, 3, DType::fp64, false},
                          {"pipedream", {2, 1, 6}, 2, DType::fp32, false},
                          {"pipedream", {3, 2, 4}, 2, DType::bf16, false},
                          {"pipedream", {3, 1, 5}, 3, DType::fp64, false}}) {
    auto o = options(row.order, row.c);
    o.sizes.dtype = row.dtype;
    o.before_use = row.clipped;
    o.data = {.ranks = row.data, .canonical = true};
    expect_declared(o, row.order, row.c, fmt::format("{}, {} data ranks", to_text(row.order, row.c), row.data));
  }
}

// ZeRO over the data ranks of a stage: states, gradients and weights sharded, old weights with them. Nothing of it is seen.
TEST_F(AsynchronousRun, DataRanksThatShardTheirStateChangeNothing) {
  struct Row {
    const char* order;
    Case c;
    std::uint32_t data, shard_group;
    DType dtype;
    bool clipped;
  };
  for (const auto& row : {Row{"pipedream-2bw", {2, 2, 3}, 2, 0, DType::fp32, true},
                          {"pipedream-2bw", {3, 4, 2}, 2, 0, DType::bf16, false},
                          {"pipedream-2bw", {2, 3, 3}, 3, 0, DType::fp64, true},
                          {"pipedream-2bw", {2, 2, 3}, 4, 2, DType::fp32, true},
                          {"pipedream-2bw", {1, 2, 3}, 2, 0, DType::fp32, true},
                          {"pipedream", {3, 1, 6}, 2, 0, DType::fp32, false},
                          {"pipedream", {4, 1, 7}, 2, 0, DType::bf16, false},
                          {"pipedream", {3, 2, 4}, 4, 2, DType::fp64, false}})
    for (const std::uint32_t zero : {1U, 2U, 3U})
      for (const std::uint32_t ahead : {0U, 2U}) {
        if (ahead != 0 && zero != 3) continue;
        auto o = options(row.order, row.c);
        o.sizes.dtype = row.dtype;
        o.before_use = row.clipped;
        o.recompute = row.data == 3;
        o.data = {.ranks = row.data, .zero = zero, .canonical = true, .shard_group = row.shard_group};
        o.gather_ahead = ahead;
        expect_declared(
            o, row.order, row.c,
            fmt::format("{}, {} data ranks, ZeRO-{}, gathered {} ahead", to_text(row.order, row.c), row.data, zero, ahead));
      }
}

// What travels in fewer bits is rounded once, by whoever sends it: micro-batches' gradients where they are folded, weights of
// every version where they are gathered. So it is still the bits of the one rank that rounds so.
TEST_F(AsynchronousRun, CompressedTravelIsTheRoundingOfTheDeclaredStaleness) {
  struct Row {
    const char* order;
    Case c;
    std::uint32_t data, zero;
    Travel gradients, weights;
    DType dtype;
    bool clipped;
    std::uint32_t shard_group = 0;
    bool disk = false;
  };
  using enum Travel;
  for (const auto& row : {Row{"pipedream-2bw", {3, 3, 3}, 1, 0, bf16, whole, DType::fp32, true},
                          {"pipedream", {3, 1, 6}, 1, 0, int8, whole, DType::bf16, false},
                          {"pipedream-2bw", {2, 2, 3}, 2, 0, int8, whole, DType::fp32, false},
                          {"pipedream", {2, 2, 3}, 2, 1, bf16, whole, DType::bf16, false},
                          {"pipedream-2bw", {3, 4, 2}, 2, 2, int8, whole, DType::fp32, true},
                          {"pipedream", {3, 1, 5}, 3, 2, bf16, whole, DType::fp32, false},
                          {"pipedream-2bw", {2, 2, 3}, 2, 3, whole, int8, DType::fp32, true},
                          {"pipedream", {4, 1, 7}, 2, 3, whole, int8, DType::bf16, false},
                          {"pipedream-2bw", {2, 3, 3}, 3, 3, int8, int8, DType::fp32, false},
                          {"pipedream", {3, 2, 4}, 4, 3, bf16, int8, DType::bf16, false, 2},
                          {"pipedream-2bw", {2, 2, 3}, 4, 3, int8, int8, DType::bf16, true, 2},
                          {"pipedream-2bw", {3, 3, 2}, 2, 3, int8, int8, DType::fp32, true, 0, true},
                          {"pipedream", {3, 1, 6}, 2, 3, bf16, int8, DType::fp32, false, 0, true}}) {
    auto o = options(row.order, row.c);
    o.sizes.width = 72;  // tensors end within blocks
    o.sizes.dtype = row.dtype;
    o.before_use = row.clipped;
    o.recompute = row.data == 3;
    o.threads = 1 + static_cast<int>(row.data % 2);
    o.data = {.ranks = row.data, .zero = row.zero, .canonical = true, .shard_group = row.shard_group};
    const auto exact = oracle(o, row.order, row.c);
    o.data.gradients = row.gradients;
    o.data.weights = row.weights;
    const auto what = fmt::format("{}, {} data ranks, ZeRO-{}, gradients {}, weights {}", to_text(row.order, row.c), row.data,
                                  row.zero, static_cast<int>(row.gradients), static_cast<int>(row.weights));
    EXPECT_NE(oracle(o, row.order, row.c).hash, exact.hash) << what << ": nothing was rounded";
    if (row.disk) test::squeeze_stages(o, true);
    expect_declared(o, row.order, row.c, what);
  }
}

// Optimizers that see whole layers prepare, exchange and finish each of a step's updates where ranks share them.
TEST_F(AsynchronousRun, WholeLayerOptimizersShardTheirState) {
  for (const auto& [order, c] : {std::pair<std::string, Case>{"pipedream-2bw", {2, 2, 3}}, {"pipedream", {3, 1, 5}}})
    for (const std::string optimizer : {"lamb", "adafactor", "muon"}) {
      auto o = options(order, c);
      o.before_use = order == "pipedream-2bw";
      o.make_optimizer = [=] { return make_optimizer(optimizer, {}); };
      o.data = {.ranks = 2, .canonical = true};
      const auto whole = run(o, order).front();
      for (const std::uint32_t zero : {1U, 2U, 3U}) {
        o.data.zero = zero;
        const auto what = fmt::format("{}, {}, ZeRO-{}", to_text(order, c), optimizer, zero);
        for (const auto& rank : run(o, what)) {
          EXPECT_EQ(rank.losses, whole.losses) << what;
          EXPECT_EQ(rank.norms, whole.norms) << what;
          EXPECT_EQ(rank.hash, whole.hash) << what;
        }
      }
    }
}

// Two numbers have one sum: where an update has one micro-batch of each of two ranks, no canonical order is needed.
TEST_F(AsynchronousRun, DataRanksReduceTheirGradientsOfEachUpdateAtOnce) {
  const Case c{3, 1, 6};
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
    auto o = options("pipedream", c);
    o.data = {.ranks = 2, .zero = zero};
    expect_declared(o, "pipedream", c, fmt::format("pipedream, two data ranks, ZeRO-{}", zero));
  }
}

// Old weights move between the tiers like any others, and every byte of them was planned.
TEST_F(AsynchronousRun, OldWeightsLiveInTheTiersAndChangeNothing) {
  struct Row {
    const char* order;
    Case c;
    DType dtype;
    bool clipped, disk;
    std::uint32_t zero = 0;  // of two data ranks; 0: of one
  };
  const Row rows[] = {
      {"pipedream-2bw", {3, 4, 3}, DType::fp32, true, false},   {"pipedream-2bw", {3, 4, 3}, DType::bf16, false, true},
      {"pipedream-2bw", {2, 3, 2}, DType::fp64, true, true},    {"pipedream", {4, 1, 8}, DType::fp32, false, false},
      {"pipedream", {3, 1, 6}, DType::bf16, false, true},       {"pipedream", {3, 2, 4}, DType::fp64, false, true},
      {"pipedream-2bw", {3, 4, 2}, DType::bf16, true, true, 1}, {"pipedream", {3, 1, 6}, DType::fp32, false, true, 2},
      {"pipedream-2bw", {2, 3, 3}, DType::fp32, true, true, 3}, {"pipedream", {3, 1, 6}, DType::bf16, false, true, 3}};
  std::uint64_t moved = 0, read = 0;
  for (const auto& row : rows) {
    auto o = options(row.order, row.c);
    o.sizes = {.width = 64, .vocab = 33, .blocks = 2 * row.c.ranks, .dtype = row.dtype, .tied = false};
    const std::vector<double> costs(static_cast<std::size_t>(o.sizes.blocks) + 2, 1.0);
    o.pipeline->begins = pipeline::balance(costs, row.c.ranks);
    o.before_use = row.clipped;
    if (row.zero != 0) o.data = {.ranks = 2, .zero = row.zero, .canonical = true};
    test::squeeze_stages(o, row.disk);
    const auto what = fmt::format("{}, {}{}", to_text(row.order, row.c), name_of(row.dtype), row.disk ? ", disk" : "") +
                      fmt::format(", ZeRO-{}", row.zero);
    expect_declared(o, row.order, row.c, what);
    for (const auto& r : run(o, what)) {
      for (const auto tier : {Tier::device, Tier::host}) EXPECT_EQ(r.peak[tier], r.planned.peak_bytes[tier]) << what;
      EXPECT_EQ(r.traffic.back().upload, r.planned.step_traffic.back().upload) << what;
      EXPECT_EQ(r.traffic.back().write, r.planned.step_traffic.back().write) << what;
      moved += r.traffic.back().upload;
      read += r.traffic.back().read;
    }
  }
  EXPECT_GT(moved, 0U);
  EXPECT_GT(read, 0U);
}

// The oracle would see it: with the newest weights throughout a run ends elsewhere.
TEST_F(AsynchronousRun, StalenessIsReal) {
  const Case c{3, 3, 4};
  for (const std::string order : {"pipedream-2bw", "pipedream"}) {
    const auto o = options(order, c);
    const toy::RunResult stale = run(o, order).front();
    const auto fresh =
        toy::StaleOracle(o, c.micro_batches, [&](std::uint32_t, std::uint32_t m) { return m / c.micro_batches; }).run();
    EXPECT_NE(stale.hash, fresh.hash) << order;
  }
}

// A step drains, so whoever goes on at its end goes on as if nothing had been.
TEST_F(AsynchronousRun, ResumesWhereItDrained) {
  for (const std::string order : {"pipedream-2bw", "pipedream"}) {
    for (const std::uint32_t zero : {0U, 1U, 3U}) {
      const Case c{3, 3, 3};
      auto o = options(order, c);
      o.steps = 4;
      o.before_use = order == "pipedream-2bw";
      if (zero != 0) o.data = {.ranks = 2, .zero = zero, .canonical = true};
      const auto wanted = oracle(o, order, c);
      o.store = folder_ / fmt::format("{}-{}", order, zero);
      o.commit_after = 2;
      const auto before = toy::run_ranks(o);
      for (const auto& error : before.errors) ASSERT_EQ(error, "") << order;
      o.commit_after = 0;
      o.resume = true;
      const auto after = toy::run_ranks(o);
      for (std::size_t r = 0; r < after.ranks.size(); ++r) {
        ASSERT_EQ(after.errors[r], "") << order << ", rank " << r;
        auto losses = before.ranks[r].losses;
        losses.insert(losses.end(), after.ranks[r].losses.begin(), after.ranks[r].losses.end());
        EXPECT_EQ(losses, wanted.losses) << order << ", rank " << r;
        EXPECT_EQ(after.ranks[r].hash, wanted.hash) << order << ", rank " << r;
      }
    }
  }
}

// Messages that are late by chance: nobody waits for ever, and no bit depends on who comes when.
TEST_F(AsynchronousRun, NoDelayOfAMessageChangesAnything) {
  const auto* const seed_text = std::getenv("TERRACE_SEED");
  const std::uint64_t seed = seed_text ? std::strtoull(seed_text, nullptr, 10) : 1;
  for (const auto& [order, clipped, zero] : {std::tuple<std::string, bool, std::uint32_t>{"pipedream-2bw", true, 0},
                                             {"pipedream-2bw", false, 0},
                                             {"pipedream", false, 0},
                                             {"pipedream-2bw", true, 1},
                                             {"pipedream-2bw", true, 3},
                                             {"pipedream", false, 3}}) {
    const Case c{zero == 0 ? 4U : 3U, 4, 3};
    auto o = options(order, c);
    if (zero != 0) o.data = {.ranks = 2, .zero = zero, .canonical = true};
    o.steps = 1;
    o.before_use = clipped;
    o.depth = 1;
    const auto wanted = oracle(o, order, c);
    o.store = folder_ / ("late" + std::to_string(runs_++));
    const auto late =
        toy::run_ranks(o, {std::chrono::seconds(60)}, {.seed = seed, .longest_delay = std::chrono::microseconds(500)});
    for (std::size_t r = 0; r < late.ranks.size(); ++r) {
      ASSERT_EQ(late.errors[r], "") << order << ", rank " << r << ", seed " << seed;
      EXPECT_EQ(late.ranks[r].hash, wanted.hash) << order << ", rank " << r << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace terrace
