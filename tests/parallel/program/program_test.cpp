#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/parallel/passes/checker.h>
#include <terrace/parallel/passes/passes.h>
#include <terrace/parallel/program/orders.h>
#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace {
namespace {

TEST(Program, TextRoundTrips) {
  const auto model = toy::make_model({});
  const StepMap map(model, {.shape = {{2, 16}, 3}, .activations = choose_activations(model, {2, 16}, kAllLayers, kAllLayers)});
  auto p = passes::with_updates(passes::with_norms(passes::with_recompute(orders::vertical(5, 3), map), map), map,
                                passes::Updates::before_use);
  p = passes::with_prefetches(passes::with_offloads(p, map), map, 2);
  p.actions.push_back({.op = Op::fill, .layer = 1, .chunk = 2});
  p.actions.push_back({.op = Op::backward_input, .layer = 4, .micro_batch = 1});
  EXPECT_EQ(parse_program(to_text(p)), p);
}

TEST(Program, ParserNamesTheLine) {
  for (const char* bad :
       {"program layers l2 micro-batches m1\nforward l0", "program layers l2 micro-batches m1\nfly l0 m0", "forward l0 m0",
        "program layers l2 micro-batches m1\nprefetch #3 attic", "program layers l2 micro-batches m1\nforward l0 m4294967296",
        "program layers l-2 micro-batches m1"}) {
    EXPECT_THAT(test::refusal_of([&] { parse_program(bad); }), testing::HasSubstr("program line")) << bad;
  }
}

// For each prefetch whose chunk is overwritten next: the number of layer actions between.
std::vector<std::uint32_t> places_ahead(const StepMap& map, std::uint32_t depth) {
  const auto p = passes::with_prefetches(
      passes::with_updates(passes::with_norms(orders::vertical(map.layers(), 3), map), map, passes::Updates::in_backward), map,
      depth);
  std::vector<std::uint32_t> distances;
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const auto& wanted = p.actions[i];
    if (wanted.op != Op::prefetch) continue;
    std::uint32_t distance = 0;
    for (std::size_t k = i + 1; k < p.actions.size(); ++k) {
      const auto& a = p.actions[k];
      if (is_placement(a.op)) continue;
      const auto uses = map.uses(a);
      const auto use = std::ranges::find(uses, ChunkId{wanted.chunk}, &Use::chunk);
      if (use != uses.end() && map.places().tier_of(a) == wanted.tier) {
        if (!needs_content(use->access)) distances.push_back(distance);
        break;
      }
      if (!is_chunk_action(a.op)) ++distance;
    }
  }
  return distances;
}

TEST(Prefetches, WantAPlaceForWhatIsOverwrittenAFewActionsAheadOnOneRankAlone) {
  const auto model = toy::make_model({});
  for (const std::uint32_t depth : {0U, 1U, 2U, 8U}) {
    const auto distances = places_ahead(StepMap(model, {.shape = {{2, 16}, 3}}), depth);
    EXPECT_EQ(distances.empty(), depth == 0);
    for (const auto distance : distances) EXPECT_LE(distance, std::min(depth, 4U));
    EXPECT_EQ(std::ranges::count(distances, std::min(depth, 4U)) > 0, depth > 0) << depth;
    EXPECT_TRUE(places_ahead(StepMap(model, {.shape = {{2, 16}, 3}, .mesh = {.shard = 2}}), depth).empty());
  }
}

// The number of layer actions between the update of each layer's first chunks and the layer's first use.
std::vector<std::size_t> updates_ahead(const Program& step, std::uint32_t layers) {
  std::vector<std::size_t> distances;
  for (std::uint32_t l = 0; l < layers; ++l) {
    const auto update = std::ranges::find_if(step.actions, [&](const Action& a) { return a.op == Op::update && a.layer == l; });
    const auto use = std::ranges::find_if(step.actions, [&](const Action& a) { return a.op != Op::update && a.layer == l; });
    if (update >= use) return {};
    distances.push_back(static_cast<std::size_t>(
        std::count_if(update, use, [](const Action& a) { return !is_chunk_action(a.op) && !is_placement(a.op); })));
  }
  return distances;
}

TEST(Updates, StandSoManyActionsBeforeTheFirstUse) {
  const auto model = toy::make_model({.tied = false});
  const StepMap map(model, {.shape = {{2, 16}, 1}});
  const auto order = passes::with_norms(orders::horizontal(map.layers(), 1), map);
  ASSERT_EQ(map.layers(), 5U);
  using Distances = std::vector<std::size_t>;
  EXPECT_EQ(updates_ahead(passes::with_updates(order, map, passes::Updates::before_use), 5), (Distances{0, 0, 0, 0, 0}));
  EXPECT_EQ(updates_ahead(passes::with_updates(order, map, passes::Updates::before_use, 2), 5), (Distances{0, 1, 2, 2, 2}));
  EXPECT_EQ(updates_ahead(passes::with_updates(order, map, passes::Updates::before_use, 9), 5), (Distances{0, 1, 2, 3, 4}));
  for (const std::uint32_t ahead : {0U, 2U, 9U})
    passes::check_step(passes::with_updates(order, map, passes::Updates::before_use, ahead), map, passes::Updates::before_use);
}

TEST(Orders, BackwardsAscendInEveryOrder) {
  for (const auto& p : {orders::horizontal(4, 5), orders::vertical(4, 5), orders::group_vertical(4, 5, 2)}) {
    std::vector<std::uint32_t> next(4, 0);
    std::size_t forwards = 0;
    for (const auto& a : p.actions) {
      if (a.op == Op::forward) ++forwards;
      if (a.op == Op::backward) {
        EXPECT_EQ(a.micro_batch, next[a.layer]++);
      }
    }
    EXPECT_EQ(forwards, 3U * 5U);  // the last layer has no forward of its own
    for (const auto n : next) EXPECT_EQ(n, 5U);
  }
}

TEST(Orders, VerticalUsesEachLayerOnceForAllMicroBatches) {
  const auto p = orders::vertical(3, 4);
  std::size_t changes = 0;
  for (std::size_t i = 1; i < p.actions.size(); ++i) changes += p.actions[i].layer != p.actions[i - 1].layer;
  EXPECT_EQ(changes, 4U);  // 0 1 2 1 0
}

TEST(StepMap, UsesNeverNameAChunkTwice) {
  for (const bool tied : {true, false}) {
    const auto model = toy::make_model({.tied = tied});
    const StepMap map(model, {.shape = {{2, 16}, 2}, .activations = choose_activations(model, {2, 16}, kAllLayers, 0)});
    auto p = passes::with_updates(passes::with_norms(passes::with_recompute(orders::horizontal(5, 2), map), map), map,
                                  passes::Updates::in_backward);
    for (const auto& a : p.actions) {
      std::set<std::uint32_t> seen;
      for (const auto& use : map.uses(a)) EXPECT_TRUE(seen.insert(index(use.chunk)).second) << to_text(a);
    }
  }
}

TEST(StepMap, ChunkIdsAreGivenOnce) {
  const auto model = toy::make_model({.dtype = DType::bf16});
  const StepMap map(model, {.recipe = rules::Recipe::of(DType::bf16), .shape = {{2, 16}, 2}});
  memory::Lru policy;
  memory::Residency residency({}, policy, 2);
  map.chunks().add_to(residency);
  ASSERT_EQ(residency.chunks(), map.chunks().size());
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c) {
    EXPECT_EQ(residency.kind_of(ChunkId{c}), map.chunks()[ChunkId{c}].kind);
    EXPECT_FALSE(map.describe(ChunkId{c}).empty());
  }
  std::set<std::uint32_t> seen;
  for (std::uint32_t l = 0; l < map.layers(); ++l)
    for (const auto kind : map.options().recipe.kinds())
      for (std::uint32_t c = 0; c < map.layout().chunks_of(l); ++c)
        EXPECT_TRUE(seen.insert(index(map.state(kind, l, c))).second);
}

// As many layers as are asked for, evenly spread, and the first three last: the next forward needs them at once.
TEST(LayerSet, DeferredLayersAreSpreadEvenly) {
  for (std::uint32_t layers = 1; layers < 40; ++layers)
    for (std::uint32_t count = 0; count <= layers; ++count) {
      const auto deferred = deferred_layers(layers, count);
      std::uint32_t found = 0, first = layers;
      for (std::uint32_t l = layers; l-- > 0;) {
        if (!deferred.contains(l)) continue;
        ++found, first = l;
        const auto passed = layers - l, spread = layers - std::min(3U, layers - 1);
        if (l >= 3) {
          EXPECT_EQ(found, passed * std::min(count, spread) / spread) << layers << ' ' << count << ' ' << l;
        }
      }
      EXPECT_EQ(found, count) << layers;
      EXPECT_EQ(deferred.empty(), count == 0);
      if (layers > 3 && count <= layers - 3) {
        EXPECT_GE(first, 3U) << layers << ' ' << count;
      }
      for (std::uint32_t l = 0; l < layers; ++l) EXPECT_NE(deferred.contains(l), deferred.others().contains(l));
    }
}

}  // namespace
}  // namespace terrace
