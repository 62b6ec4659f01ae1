// Models with skips: a later layer reads an earlier layer's result. One rank gives a serial oracle's bits; a pipeline sends one
// message for each result and other rank that reads it. (one_rank_bits_test.cpp has the bits of all else.)
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>

#include <terrace/core/base/error.h>
#include <terrace/parallel/map/program_bytes.h>
#include <terrace/parallel/pipeline/simulate.h>

#include <terrace/tests/parallel/pipeline/pipeline_run.h>
#include <terrace/tests/parallel/pipeline/stale_oracle.h>

namespace terrace {
namespace {

constexpr const char* kOrders[] = {"layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};

class SkipRun : public test::PipelineRun {
 protected:
  static toy::RunOptions options(std::int64_t blocks, std::uint32_t micro_batches) {
    toy::RunOptions o;
    o.sizes = {.width = 16, .vocab = 33, .blocks = blocks, .skips = true};
    o.steps = 2;
    o.shape = {{1, 4}, micro_batches};
    return o;
  }
};

// The oracle runs the layers one after the other, without chunks, programs or messages.
TEST_F(SkipRun, OneRankGivesTheBitsOfASerialOracle) {
  for (const auto& [dtype, blocks] : {std::pair{DType::fp64, 3}, {DType::fp32, 6}, {DType::bf16, 7}}) {
    auto o = options(blocks, 3);
    o.sizes.dtype = dtype;
    o.sizes.tied = false;
    const auto oracle = toy::StaleOracle(o, 3, [](std::uint32_t, std::uint32_t) { return 0U; }).run();
    const auto r = run(o, "one rank");
    EXPECT_EQ(r.losses, oracle.losses) << name_of(dtype);
    EXPECT_EQ(r.norms, oracle.norms) << name_of(dtype);
    EXPECT_EQ(r.hash, oracle.hash) << name_of(dtype);
  }
}

// Counts the pairs of a result (by its layer) and another rank that reads it.
std::size_t cut_edges(const Model& model, const pipeline::Pipeline& p) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> edges;
  const auto part = pipeline::placement_of(p);
  const auto add = [&](std::uint32_t from, std::uint32_t to) {
    if (part.holder(from) != part.holder(to)) edges.emplace(from, part.holder(to));
  };
  for (std::uint32_t l = 1; l < p.layers(); ++l) {
    add(l - 1, l);
    if (const auto from = model.layers[l]->facts().skips_from) add(*from, l);
  }
  return edges.size();
}

TEST_F(SkipRun, MessagesAreTheCutEdges) {
  std::size_t without_skips = 0;  // orders whose skips need no message
  for (const auto& [order, v, p, blocks] : {std::tuple{"gpipe", 1U, 2U, 6},
                                            {"1f1b", 1U, 3U, 9},
                                            {"zb-h1", 1U, 4U, 11},
                                            {"interleaved", 2U, 2U, 8},
                                            {"interleaved", 3U, 2U, 12},
                                            {"zb-v", 2U, 2U, 6},
                                            {"zb-v", 2U, 3U, 10},
                                            {"dualpipe-v", 2U, 2U, 6}}) {
    const std::uint32_t m = 4;
    const auto what = fmt::format("{} on {} ranks, {} stages each, {} blocks", order, p, v, blocks);
    auto o = options(blocks, m);
    o.sizes.tied = false;
    o.pipeline = test::pipeline_of(order, p, m, v, blocks);
    o.store = folder_;
    const auto [sent, received] = test::messages_of(o, p);
    const auto model = toy::make_model(o.sizes);
    const StepMap map(model, {.shape = o.shape, .pipeline = placement_of(*o.pipeline)});
    const std::uint64_t messages = 2 * m * cut_edges(model, *o.pipeline);
    EXPECT_EQ(sent.calls, messages) << what;
    EXPECT_EQ(received.calls, messages) << what;
    EXPECT_EQ(sent.payload_bytes, messages * map.chunks()[map.buffers().x(1, 0)].bytes) << what;
    EXPECT_EQ(received.payload_bytes, sent.payload_bytes) << what;
    o.sizes.skips = false;
    if (cut_edges(toy::make_model(o.sizes), *o.pipeline) * 2 * m == messages) ++without_skips;
  }
  EXPECT_EQ(without_skips, 3U);  // a V has block i and block n − 1 − i on one rank
}

// If everything fits, only what layers offload moves, and its bytes are known.
TEST_F(SkipRun, OnlyWhatLayersOffloadMovesWhereAllElseFits) {
  const std::uint64_t seed = 3;
  std::mt19937_64 random(seed);
  constexpr std::uint32_t kMicroBatches = 4;
  std::uint64_t moved = 0;
  for (int i = 0; i < 120; ++i) {
    auto o = options(3 + static_cast<std::int64_t>(random() % 9), kMicroBatches);
    o.sizes.tied = random() % 2 == 0;
    o.before_use = false;
    o.update = Tier::device;
    o.depth = random() % 4;
    o.order = random() % 2 == 0 ? Order::horizontal : Order::vertical;
    o.activations.resize(static_cast<std::size_t>(o.sizes.blocks) + 2);
    for (auto& each : o.activations) each = {.recompute = random() % 2 == 0, .offload = random() % 2 == 0};
    const std::string order = i % 9 < 7 ? kOrders[i % 9] : i % 9 == 7 ? "chimera" : "";
    const std::uint32_t ranks = order.empty() ? 1 : 2;
    if (!order.empty()) o.pipeline = test::pipeline_of(order, ranks, kMicroBatches, 2, o.sizes.blocks);
    const auto model = toy::make_model(o.sizes);
    auto request = toy::request_of(o);
    for (request.rank = 0; request.rank < ranks; ++request.rank) {
      SCOPED_TRACE(fmt::format("seed {}, try {}: {}, rank {}", seed, i, order, request.rank));
      const auto p = plan(model, request, o.profile);
      const StepMap map(model, p.map);
      auto traffic = p.steady_traffic;
      const auto offloaded = mapping::offloaded_by(map, p.programs.steady);
      EXPECT_EQ(traffic.upload, offloaded.upload);
      EXPECT_EQ(traffic.download, offloaded.download);
      EXPECT_FALSE(mapping::moves_state(map, p.programs.steady, traffic));
      ++traffic.upload;
      EXPECT_TRUE(mapping::moves_state(map, p.programs.steady, traffic)) << "a byte more was no layer's";
      moved += traffic.upload;
    }
  }
  EXPECT_GT(moved, 0U);
}

// A skip's result is sent to the other rank before it is offloaded, so that it need not come back for that.
TEST_F(SkipRun, AResultIsSentBeforeItIsOffloaded) {
  const std::uint32_t ranks = 2, m = 3;
  auto o = options(6, m);
  o.offload = true;
  o.pipeline = test::pipeline_of("1f1b", ranks, m, 1, o.sizes.blocks);
  const auto model = toy::make_model(o.sizes);
  const auto p = plan(model, toy::request_of(o), o.profile);
  const model::Skips skips(model);
  std::set<std::pair<std::uint32_t, std::uint32_t>> offloaded;
  std::uint32_t sent = 0;
  for (const auto& a : p.programs.steady.actions) {
    if (a.op == Op::offload) {
      EXPECT_TRUE(offloaded.emplace(a.layer, a.micro_batch).second) << to_text(a);
    }
    if (a.op != Op::send || a.payload != Payload::activation || skips.reader(a.layer) == model::Skips::kNone) continue;
    EXPECT_FALSE(offloaded.contains({a.layer, a.micro_batch})) << to_text(a);
    ++sent;
  }
  EXPECT_EQ(sent, 2 * m);
}

TEST_F(SkipRun, ASkipsSumIsKeptAndNotWhatItIsMadeOf) {
  for (const bool recompute : {false, true}) {
    auto o = options(6, 2);
    o.recompute = recompute;
    const auto model = toy::make_model(o.sizes);
    const auto p = plan(model, toy::request_of(o), o.profile);
    const StepMap map(model, p.map);
    int skipping = 0;
    for (std::uint32_t l = 1; l + 1 < map.layers(); ++l) {
      const bool skips = model.layers[l]->facts().skips_from.has_value();
      skipping += skips ? 1 : 0;
      const auto left = map.left_by_forward(l, 1);
      EXPECT_EQ(std::ranges::find(left, map.buffers().x(l, 1)) != left.end(), !skips || recompute) << "layer " << l;
    }
    EXPECT_EQ(skipping, 2);
  }
}

TEST_F(SkipRun, PeakOfLiveActivationsIsTheSimulatedOne) {
  for (const std::string order : kOrders) {
    const std::uint32_t p = 3, m = 6;
    auto o = options(13, m);
    o.pipeline = test::pipeline_of(order, p, m, 2, o.sizes.blocks);
    o.store = folder_ / order;
    o.commit_at_end = false;
    const auto all = toy::run_ranks(o);
    const auto simulated = pipeline::simulate(o.pipeline->schedule, {});
    const auto model = toy::make_model(o.sizes);
    for (std::uint32_t r = 0; r < p; ++r) {
      ASSERT_EQ(all.errors[r], "") << order << ", rank " << r;
      const StepMap map(model, all.ranks[r].planned.map);
      for (const auto& live : all.ranks[r].live) {
        EXPECT_EQ(live.activations, simulated.peak_live[r]) << order << ", rank " << r;
        EXPECT_EQ(live.bytes, test::most_bytes(*o.pipeline, r, map)) << order << ", rank " << r;
      }
    }
  }
}

}  // namespace
}  // namespace terrace
