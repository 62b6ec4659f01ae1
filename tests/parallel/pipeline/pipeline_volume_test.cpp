// The bytes that a pipeline's ranks send each other, counted where they are issued, equal the order's formula.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <terrace/tests/parallel/pipeline/pipeline_run.h>
#include <terrace/tests/support/data_ranks.h>

namespace terrace {
namespace {

using PipelineVolume = test::FolderTest;

TEST_F(PipelineVolume, TheLedgerIsTheFormulaOfEveryOrder) {
  struct Case {
    const char* order;
    std::uint32_t stages_a_rank, edges_within;  // edges between stages of one rank, which need no message
  };
  for (const auto& [order, v, within] : {Case{"layerwise", 1, 0},
                                         {"gpipe", 1, 0},
                                         {"1f1b", 1, 0},
                                         {"interleaved", 2, 0},
                                         {"interleaved", 3, 0},
                                         {"zb-h1", 1, 0},
                                         {"zb-v", 2, 1},
                                         {"dualpipe-v", 2, 1}})
    for (const auto& [p, m] : {std::pair{2U, 4U}, {3U, 7U}}) {
      const auto what = fmt::format("{} on {} ranks, {} stages each, {} micro-batches", order, p, v, m);
      toy::RunOptions o;
      o.store = folder_;
      o.sizes = {.width = 16, .vocab = 33, .blocks = p * v};
      o.sizes.tied = false;
      o.shape = {{1, 4}, m};
      const auto schedule = pipeline::write_order(order, {.ranks = p, .micro_batches = m, .chunks = v});
      std::vector<std::uint32_t> begins{0};
      for (std::uint32_t s = 1; s < p * v; ++s) begins.push_back(s + 1);
      begins.push_back(p * v + 2);
      o.pipeline = {schedule, begins};
      const auto [sent, received] = test::messages_of(o, p);
      const std::uint64_t messages = 2 * m * (p * v - 1 - within);
      const auto model = toy::make_model(o.sizes);
      const StepMap map(model, {.shape = o.shape, .mesh = {.pp = o.pipeline_ranks()}, .pipeline = placement_of(*o.pipeline)});
      EXPECT_EQ(sent.calls, messages) << what;
      EXPECT_EQ(received.calls, messages) << what;
      EXPECT_EQ(sent.payload_bytes, messages * map.chunks()[map.buffers().x(1, 0)].bytes) << what;
      EXPECT_EQ(received.payload_bytes, sent.payload_bytes) << what;
    }
}

// Beside the messages, every group of a stage's gradients is added up between its two ranks.
TEST_F(PipelineVolume, TwoDirectionsAddTheirGradientsUpOnceOrInEveryRound) {
  for (const bool canonical : {false, true})
    for (const auto& [p, m] : {std::pair{2U, 4U}, {4U, 6U}}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches{}", p, m, canonical ? ", canonical" : ""));
      toy::RunOptions o;
      o.store = folder_;
      o.sizes = {.width = 16, .vocab = 33, .blocks = p};
      o.shape = {{1, 4}, m};
      o.data.canonical = canonical;
      std::vector<std::uint32_t> begins{0};
      for (std::uint32_t s = 1; s < p; ++s) begins.push_back(s + 1);
      begins.push_back(p + 2);
      o.pipeline = {pipeline::write_order("chimera", {.ranks = p, .micro_batches = m}), begins};
      const auto model = toy::make_model(o.sizes);
      const auto ledgers = test::ledgers_of(o, p);
      std::uint64_t sent = 0;
      for (std::uint32_t r = 0; r < p; ++r) {
        const StepMap map(model, {.shape = o.shape,
                                  .mesh = o.data.mesh(o.pipeline_ranks()),
                                  .data = o.data.settings(),
                                  .pipeline = placement_of(*o.pipeline),
                                  .rank = r});
        std::uint64_t groups = 0;
        for (std::uint32_t l = 0; l < map.layers(); ++l)
          if (map.pipeline().holds(l)) groups += map.reduced_groups(l);
        const auto bytes = map.chunks()[map.state(ChunkKind::gradient, map.pipeline().holds(0) ? 0 : begins[r], 0)].bytes;
        const auto expect = [&](comm::Operation operation, std::uint64_t calls) {
          const auto entry = ledgers[r].of("directions", operation);
          EXPECT_EQ(entry.calls, calls) << "rank " << r;
          EXPECT_EQ(entry.payload_bytes, calls * bytes) << "rank " << r;
        };
        expect(comm::Operation::all_reduce, canonical ? 0 : groups);
        expect(comm::Operation::reduce_scatter, canonical ? groups * m / 2 : 0);
        expect(comm::Operation::all_gather, canonical ? groups : 0);
        for (const auto& [key, entry] : ledgers[r].entries())
          if (key.second == comm::Operation::send) sent += entry.calls;
      }
      EXPECT_EQ(sent, 2 * m * (p - 1));
    }
}

// In an asynchronous order, each update of a stage's weights reduces its gradient (with sharded gradients, that of every
// micro-batch) and, with ZeRO, gathers the updated weights.
TEST_F(PipelineVolume, AsynchronousUpdatesReduceAndGatherTheirStage) {
  constexpr std::uint32_t kRanks = 2, kData = 2, kUpdates = 3, kMicroBatches = 2;
  for (const std::uint32_t zero : {0U, 1U, 2U}) {
    SCOPED_TRACE(fmt::format("ZeRO-{}", zero));
    toy::RunOptions o;
    o.store = folder_;
    o.sizes = {.width = 16, .vocab = 33, .blocks = 2, .tied = false};
    o.shape = {{1, 4}, kMicroBatches * kUpdates};
    o.data = {.ranks = kData, .zero = zero};
    o.before_use = false;
    o.pipeline = {pipeline::write_order("pipedream", {.ranks = kRanks, .micro_batches = kMicroBatches, .updates = kUpdates}),
                  {0, 2, 4}};
    const auto model = toy::make_model(o.sizes);
    const auto ledgers = test::ledgers_of(o, kRanks * kData);
    for (std::uint32_t r = 0; r < kRanks * kData; ++r) {
      const StepMap map(model, {.shape = o.shape,
                                .mesh = o.data.mesh(o.pipeline_ranks()),
                                .data = o.data.settings(),
                                .pipeline = placement_of(*o.pipeline),
                                .rank = r});
      std::uint64_t groups = 0;
      for (std::uint32_t l = 0; l < map.layers(); ++l)
        if (map.pipeline().holds(l)) groups += map.layout().groups_of(l);
      const auto bytes =
          map.options().recipe.chunk_bytes(ChunkKind::gradient, map.layout().chunk_elements()) * map.data().group();
      const auto expect = [&](comm::Operation operation, std::uint64_t calls) {
        const auto entry = ledgers[r].of("dp", operation);
        EXPECT_EQ(entry.calls, calls) << "rank " << r;
        EXPECT_EQ(entry.payload_bytes, calls * bytes) << "rank " << r;
      };
      expect(comm::Operation::all_reduce, zero == 0 ? kUpdates * groups : 0);
      expect(comm::Operation::reduce_scatter, zero == 0 ? 0 : kUpdates * groups * (zero == 2 ? kMicroBatches : 1));
      expect(comm::Operation::all_gather, zero == 0 ? 0 : kUpdates * groups);
    }
  }
}

// Gathers, reductions, messages and results of all ranks together. Each rank sends its part of a sum, rounded to whole
// elements.
TEST_F(PipelineVolume, APlanSaysEveryByteThatItsRanksSend) {
  struct Row {
    const char* order;
    std::uint32_t ranks, micro_batches, updates;  // 0 updates: synchronous
    test::DataRanks data = {};
    bool clipped = false, tied = false, skips = false;
  };
  for (const auto& row :
       {Row{"1f1b", 2, 4, 0, {}, false, true}, Row{"zb-v", 3, 4, 0, {.ranks = 2, .zero = 1}, false, true},
        Row{"1f1b", 3, 4, 0, {.ranks = 2}, false, false, true}, Row{"interleaved", 2, 4, 0, {.ranks = 2, .zero = 2}},
        Row{"gpipe", 2, 2, 0, {.ranks = 4, .zero = 3, .shard_group = 2}},
        Row{"gpipe", 2, 2, 0, {.ranks = 4, .zero = 3, .canonical = true, .shard_group = 2}},
        Row{"chimera", 4, 4, 0, {}, false, true}, Row{"chimera", 4, 4, 0, {.ranks = 2, .zero = 3, .canonical = true}},
        Row{"pipedream", 3, 2, 3}, Row{"pipedream", 2, 2, 3, {.ranks = 2, .zero = 2}},
        Row{"pipedream", 2, 2, 3, {.ranks = 2, .zero = 3}}, Row{"pipedream-2bw", 2, 2, 3, {}, true},
        Row{"pipedream-2bw", 2, 2, 3, {}, false}, Row{"pipedream-2bw", 2, 2, 3, {.ranks = 2}, true},
        Row{"pipedream-2bw", 3, 3, 2, {.ranks = 2, .zero = 1}, true, false, true},
        Row{"pipedream-2bw", 2, 2, 3, {.ranks = 4, .zero = 2, .shard_group = 2}, true}}) {
    SCOPED_TRACE(fmt::format("{} on {} × {} ranks, ZeRO-{}, {} updates{}", row.order, row.ranks, row.data.ranks, row.data.zero,
                             row.updates, row.clipped ? ", clipped" : ""));
    toy::RunOptions o;
    o.store = folder_;
    o.sizes = {.width = 16, .vocab = 33, .blocks = 6, .tied = row.tied, .skips = row.skips};
    o.shape = {{1, 4}, row.micro_batches * std::max(1U, row.updates)};
    o.data = row.data;
    o.before_use = row.clipped;
    const auto schedule = pipeline::write_order(
        row.order, {.ranks = row.ranks, .micro_batches = row.micro_batches, .chunks = 2, .updates = std::max(1U, row.updates)});
    o.pipeline = {schedule, pipeline::balance(std::vector<double>(8, 1.0), schedule.placement.stages)};
    std::uint64_t sent = 0;
    for (const auto& ledger : test::ledgers_of(o, row.ranks * row.data.ranks))
      for (const auto& [key, entry] : ledger.entries()) sent += entry.sent_bytes;
    const auto model = toy::make_model(o.sizes);
    auto request = toy::request_of(o);
    double planned = 0;
    for (request.rank = 0; request.rank < row.ranks * row.data.ranks; request.rank += row.data.ranks) {
      const auto links = plan(model, request, o.profile).steady_links;
      EXPECT_EQ(links.between, 0);
      planned += links.within * row.data.ranks;
    }
    EXPECT_NEAR(planned, static_cast<double>(sent), 0.5);
  }
}

}  // namespace
}  // namespace terrace
