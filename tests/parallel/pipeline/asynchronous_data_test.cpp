// Asynchronous orders with several data ranks per stage, with ZeRO and compressed travel, still give the bits of one rank.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <terrace/tests/parallel/pipeline/asynchronous_run.h>

namespace terrace {
namespace {

using AsynchronousRun = test::AsynchronousRun;

// With several data ranks per stage, gradients are folded in the order of the global micro-batches, and every data rank applies
// the same update.
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

// ZeRO over the data ranks of a stage shards states, gradients and weights, old versions included, and changes no result.
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

// The sender rounds what travels in fewer bits once: gradients of micro-batches where they are folded, weights of every version
// where they are gathered. So the result equals one rank that rounds the same way.
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

// A skip carries one micro-batch; each of its two ends computes that micro-batch with its own stage's weight version, which may
// be gathered from kept shards.
TEST_F(AsynchronousRun, SkipsLeadBetweenStagesOfDifferentVersions) {
  struct Row {
    const char* order;
    Case c;
    std::int64_t blocks;
    std::uint32_t data, zero;
    DType dtype;
    bool clipped, offload;
    int tiers;
    std::uint32_t shard_group = 0;
  };
  const Row rows[] = {{"pipedream-2bw", {3, 3, 3}, 7, 1, 0, DType::fp32, true, false, 0},
                      {"pipedream", {3, 3, 3}, 7, 1, 0, DType::bf16, false, true, 0},
                      {"pipedream", {5, 1, 9}, 9, 1, 0, DType::fp64, false, false, 2},
                      {"pipedream-2bw", {2, 2, 3}, 4, 2, 1, DType::bf16, true, false, 1},
                      {"pipedream-2bw", {2, 2, 3}, 4, 2, 3, DType::fp32, true, false, 0},
                      {"pipedream-2bw", {3, 4, 2}, 8, 2, 3, DType::bf16, false, true, 0},
                      {"pipedream", {4, 1, 7}, 10, 2, 3, DType::fp32, false, false, 0},
                      {"pipedream", {3, 2, 4}, 5, 4, 3, DType::fp64, false, false, 0, 2},
                      {"pipedream", {3, 1, 6}, 9, 2, 2, DType::fp32, false, true, 2},
                      {"pipedream-2bw", {3, 3, 3}, 8, 3, 3, DType::fp32, true, false, 1},
                      {"pipedream-2bw", {3, 3, 2}, 11, 2, 3, DType::bf16, true, true, 2},
                      {"pipedream", {4, 1, 6}, 9, 2, 3, DType::fp32, false, false, 2}};
  for (const auto& row : rows)
    for (const bool recompute : {false, true}) {
      auto o = options(row.order, row.c, row.blocks);
      o.sizes.dtype = row.dtype;
      o.before_use = row.clipped;
      o.recompute = recompute;
      o.offload = row.offload;
      o.data = {.ranks = row.data, .zero = row.zero, .canonical = true, .shard_group = row.shard_group};
      const auto straight = oracle(o, row.order, row.c);
      o.sizes.skips = true;
      const auto what = fmt::format("{}, {} blocks, {} data ranks, ZeRO-{}, tiers {}{}", to_text(row.order, row.c), row.blocks,
                                    row.data, row.zero, row.tiers, recompute ? ", recomputed" : "");
      EXPECT_NE(oracle(o, row.order, row.c).hash, straight.hash) << what << ": nothing skips";
      if (row.tiers > 0) test::squeeze_stages(o, row.tiers == 2);
      const model::Skips skips(toy::make_model(o.sizes));
      std::size_t kept = 0, sent = 0;
      for (const auto& r : expect_declared(o, row.order, row.c, what))
        for (const auto& a : r.planned.programs.steady.actions) {
          kept += a.op == Op::keep ? 1 : 0;
          sent += a.op == Op::send && a.payload == Payload::activation && skips.reader(a.layer) != model::Skips::kNone ? 1 : 0;
        }
      EXPECT_GT(kept, 0U) << what;
      EXPECT_GT(sent, 0U) << what;
    }
}

// Where ranks share layers, whole-layer optimizers prepare, exchange and finish each of a step's updates.
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

// A sum of two numbers has only one order, so an update with one micro-batch from each of two ranks needs no canonical order.
TEST_F(AsynchronousRun, DataRanksReduceTheirGradientsOfEachUpdateAtOnce) {
  const Case c{3, 1, 6};
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
    auto o = options("pipedream", c);
    o.data = {.ranks = 2, .zero = zero};
    expect_declared(o, "pipedream", c, fmt::format("pipedream, two data ranks, ZeRO-{}", zero));
  }
}

}  // namespace
}  // namespace terrace
