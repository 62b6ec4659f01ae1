// Frozen parameters are only read, and the others get the bits of a run in which the frozen ones train at a rate of 0.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/parallel/passes/checker.h>
#include <terrace/parallel/passes/passes.h>

#include <terrace/tests/parallel/pipeline/pipeline_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

// The embedding and the first block, so that nothing below them trains; a whole block between trained ones; a part of a block.
constexpr const char* kFrozen = "embed,blocks.0,blocks.2,blocks.3.a";
constexpr const char* kStill = "^table$|blocks\\.[02]\\.|blocks\\.3\\.a:rate=0";  // the same weights, trained without a rate

toy::RunOptions options() {
  toy::RunOptions o;
  o.sizes.tied = false;
  o.sizes.blocks = 5;
  o.sizes.phases = true;  // so that a part of a block can be frozen
  o.before_use = false;   // no clipping: the norm does not count frozen gradients
  o.shape.micro_batches = 4;
  o.chunk_elements = 2048;
  return o;
}

class Freeze : public test::PipelineRun {
 protected:
  toy::RunResult still(toy::RunOptions o) {
    o.param_groups = kStill;
    return run(std::move(o), "rate 0");
  }
  // Losses depend on all weights. Hashes of weights also depend on the weights' places, which freezing changes.
  static void expect_same_losses(const toy::RunResult& a, const toy::RunResult& b, const std::string& what) {
    ASSERT_TRUE(b.planned.fits) << what << ": " << b.planned.refusal.why;
    EXPECT_EQ(bits(a.losses), bits(b.losses)) << what;
  }
  static void expect_same_weights(const toy::RunResult& a, const toy::RunResult& b, const std::string& what) {
    expect_same_losses(a, b, what);
    EXPECT_EQ(a.hash, b.hash) << what;
  }
};

TEST_F(Freeze, TheOthersTrainAsBesideWeightsWithARateOfZero) {
  for (const auto order : {Order::horizontal, Order::vertical})
    for (const bool recompute : {false, true}) {
      auto o = options();
      o.order = order;
      o.recompute = recompute;
      const auto expected = still(o);
      o.freeze = kFrozen;
      const auto frozen = run(o, "frozen");
      expect_same_losses(expected, frozen, recompute ? "recomputed" : "kept");
      EXPECT_LT(frozen.norms.front(), expected.norms.front()) << "the norm counts frozen gradients";
    }
}

TEST_F(Freeze, ClippingAndEveryRecipeLeaveFrozenBitsAsTheyWere) {
  for (const auto& [dtype, recipe] : std::vector<std::pair<DType, std::string>>{
           {DType::fp32, "fp32"}, {DType::fp64, "fp32"}, {DType::bf16, "fp32"}, {DType::bf16, "split"}}) {
    SCOPED_TRACE(recipe + " of " + std::string(name_of(dtype)));
    auto o = options();
    o.before_use = true;
    o.sizes.dtype = dtype;
    o.recipe = recipe;
    o.freeze = kFrozen;
    o.store = folder_ / "store";
    std::filesystem::remove_all(o.store);
    toy::Training t(o);
    using Weights = std::map<std::string, std::string>;
    const auto weights = [&] {
      Weights all;
      t.engine->visit([&](const ParamSpec& p, std::uint64_t, TensorView range) {
        all[p.name] += std::string(reinterpret_cast<const char*>(range.data), range.bytes());
      });
      return all;
    };
    const auto before = weights();
    for (int s = 0; s < 3; ++s) t.step();
    const auto after = weights();
    for (std::uint32_t l = 0; l < t.engine->map().layers(); ++l)
      for (const auto& p : t.engine->map().layout().params(l))
        EXPECT_EQ(p.frozen, before.at(p.name) == after.at(p.name)) << p.name;
  }
}

// A frozen layer has chunks of weights only, and the actions of a step only read them.
TEST_F(Freeze, FrozenChunksHaveWeightsOnly) {
  auto o = options();
  o.freeze = kFrozen;
  o.store = folder_ / "store";
  toy::Training t(o);
  const auto& map = t.engine->map();
  const auto& layout = map.layout();
  EXPECT_EQ(2U, layout.first_trained());
  std::map<ChunkKind, std::uint64_t> chunks;
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
    if (map.chunks()[ChunkId(c)].role == mapping::Role::state) ++chunks[map.chunks()[ChunkId(c)].kind];
  std::uint64_t all = 0, trained = 0;
  for (std::uint32_t l = 0; l < map.layers(); ++l) all += layout.chunks_of(l), trained += layout.trained_chunks(l);
  EXPECT_EQ(all, chunks[ChunkKind::parameter]);
  EXPECT_LT(trained, all / 2 + all / 4);
  for (const auto kind : {ChunkKind::gradient, ChunkKind::first_moment, ChunkKind::second_moment})
    EXPECT_EQ(trained, chunks[kind]);
  // The plan's memory: weights of all, gradients and two moments of the others.
  EXPECT_EQ((all + 3 * trained) * layout.chunk_elements() * 4, map.chunks().state_bytes());
  for (const auto& a : t.planned.programs.steady.actions) {
    if (a.op == Op::prefetch) continue;
    EXPECT_FALSE(is_backward(a.op) && a.layer < 2) << to_text(a);
    EXPECT_FALSE((a.op == Op::norm || a.op == Op::update || a.op == Op::backward_weight) && layout.trained_chunks(a.layer) == 0)
        << to_text(a);
    for (const auto& use : map.uses(a)) {
      const auto& chunk = map.chunks()[use.chunk];
      if (chunk.role != mapping::Role::state || chunk.kind != ChunkKind::parameter ||
          chunk.position < layout.trained_chunks(chunk.layer))
        continue;
      EXPECT_FALSE(writes(use.access)) << to_text(a);
    }
  }
}

// The results of updates go to the device on the lane of the prefetches. Prefetches of frozen weights do not wait for updates,
// so the updates must stand as early as these prefetches.
TEST_F(Freeze, UpdatesStandAsFarAheadAsThePrefetchesOfFrozenWeights) {
  auto o = options();
  o.before_use = true;
  for (const bool frozen : {false, true})
    for (const std::uint32_t depth : {0U, 2U}) {
      SCOPED_TRACE(testing::Message() << (frozen ? "frozen" : "all trained") << ", depth " << depth);
      o.freeze = frozen ? kFrozen : "";
      o.depth = depth;
      o.store = folder_ / "store";
      std::filesystem::remove_all(o.store);
      toy::Training t(o);
      const auto& actions = t.planned.programs.steady.actions;
      for (const std::uint32_t layer : {2U, 5U}) {
        const auto is_update = [&](const Action& a) { return a.op == Op::update && a.layer == layer; };
        const auto is_use = [&](const Action& a) { return a.op == Op::forward && a.layer == layer; };
        const auto update = std::ranges::find_if(actions, is_update), use = std::ranges::find_if(actions, is_use);
        ASSERT_LT(update, use);
        EXPECT_EQ(std::count_if(update, use, [](const Action& a) { return a.op == Op::forward; }), frozen ? depth : 0);
      }
    }
}

// With the frozen weights on disk, the bits are those of a run that moves nothing, wherever updates stand and run.
TEST_F(Freeze, DeferredUpdatesGiveTheSameBitsAtEveryDepth) {
  auto o = options();
  o.before_use = true;
  o.freeze = kFrozen;
  const auto reference = run(o, "unlimited");
  o.disk_tier = true;
  o.budget = {reference.planned.smallest_bytes[Tier::device] + 128 * kKiB, 192 * kKiB, 256 * kMiB};
  for (const std::uint32_t depth : {0U, 1U, 4U, 8U})
    for (const auto update : {Tier::host, Tier::device}) {
      o.depth = depth;
      o.update = update;
      EXPECT_GT(expect_same_within(o, reference, fmt::format("depth {}, updates on {}", depth, name_of(update))), 0U);
    }
}

// On disk, frozen weights are written once, by the first commit or before it, and then only read: a second commit names the
// same places, whereas a chunk that is written again gets another place.
TEST_F(Freeze, TheDiskIsNeverWrittenAgainForFrozenWeights) {
  auto o = options();
  o.freeze = kFrozen;
  const auto reference = run(o, "unlimited");
  o.disk_tier = true;
  o.commit_every = 3;
  o.budget = {reference.planned.smallest_bytes[Tier::device], 192 * kKiB, 256 * kMiB};
  o.store = folder_ / "store";
  const auto places = [&] {
    std::map<std::string, std::uint64_t> all;
    for (const auto& chunk : ChunkStore::open({.paths = {o.store}})->committed()) all[chunk.description.label] = chunk.offset;
    return all;
  };
  std::set<std::string> frozen;
  std::map<std::string, std::uint64_t> first;
  std::uint64_t read = 0;
  for (const bool resumes : {false, true}) {
    o.resume = resumes;
    {
      toy::Training t(o);
      ASSERT_TRUE(t.planned.fits) << t.planned.refusal.why;
      const auto& map = t.engine->map();
      for (int s = 0; s < 3; ++s) {
        const auto step = t.step().back();
        if (!resumes) {
          EXPECT_EQ(t.planned.step_traffic[step.number - 1], step.result.moved) << "step " << step.number;
        }
        read += step.result.moved.read;
      }
      const auto before = t.engine->moved().write;
      t.trainer->commit();
      std::uint64_t trained_bytes = 0;  // the most that a commit may write: weights and two moments
      for (std::uint32_t l = 0; l < map.layers(); ++l) {
        trained_bytes += std::uint64_t{map.layout().trained_chunks(l)} * map.layout().chunk_elements() * 4 * 3;
        for (auto c = map.layout().trained_chunks(l); c < map.layout().chunks_of(l); ++c)
          frozen.insert(map.describe(map.state(ChunkKind::parameter, l, c)));
      }
      if (resumes) {
        EXPECT_LE(t.engine->moved().write - before, trained_bytes);
        EXPECT_EQ(reference.hash, t.hash());
      }
    }
    if (!resumes) first = places();
  }
  EXPECT_GT(read, 0U);
  EXPECT_GT(frozen.size(), 0U);
  std::size_t moved = 0;
  for (const auto& [label, place] : places()) {
    if (frozen.contains(label))
      EXPECT_EQ(first.at(label), place) << label << " was written again";
    else
      moved += first.at(label) != place ? 1 : 0;
  }
  EXPECT_GT(moved, 0U);
}

TEST_F(Freeze, EveryBudgetGivesTheSameBits) {
  auto o = options();
  o.freeze = kFrozen;
  o.before_use = true;
  o.evaluate_between = true;
  const auto reference = run(o, "unlimited");
  o.disk_tier = true;
  for (const std::uint32_t depth : {0U, 2U})
    for (const auto order : {Order::horizontal, Order::vertical}) {
      o.depth = depth;
      o.order = order;
      o.budget = {reference.planned.smallest_bytes[Tier::device], 256 * kKiB, 256 * kMiB};
      EXPECT_GT(expect_same_within(o, reference, "depth " + std::to_string(depth)), 0U);
    }
}

TEST_F(Freeze, ResumeIsExact) {
  auto o = options();
  o.freeze = kFrozen;
  o.before_use = true;
  const auto whole = run(o, "at once");
  o.store = folder_ / "resumed";
  o.commit_after = 3;
  const auto first = toy::run(o);
  o.commit_after = 0;
  o.resume = true;
  const auto second = toy::run(o);
  EXPECT_EQ(3U, second.steps_run);
  EXPECT_EQ(whole.hash, second.hash);
}

// With canonical sums, data ranks give the bits of one rank.
TEST_F(Freeze, DataRanksGiveTheBitsOfOne) {
  auto o = options();
  o.freeze = kFrozen;
  o.before_use = true;
  const auto one = run(o, "one rank");
  o.shape.micro_batches = 2;
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
    o.data = {.ranks = 2, .zero = zero, .canonical = true};
    expect_same_weights(one, run(o, "stage " + std::to_string(zero)), "stage " + std::to_string(zero));
  }
}

TEST_F(Freeze, PipelinesGiveTheBitsOfOneRank) {
  for (const bool tied : {false, true}) {
    auto o = options();
    o.sizes.tied = tied;
    o.before_use = true;
    o.freeze = kFrozen;  // a tied head reads the frozen table, and has no gradient for it
    const auto one = run(o, "one rank");
    for (const auto* const order : {"1f1b", "gpipe", "zb-h1", "interleaved", "chimera"}) {
      o.pipeline = test::pipeline_of(order, 2, 4, 2, o.sizes.blocks);
      o.data.canonical = std::string_view(order) == "chimera";  // its two ranks of a stage add up their gradients
      expect_same_weights(one, run(o, order), order);
    }
  }
}

TEST_F(Freeze, ATiedTableCanBeFrozenOnOneRank) {
  auto o = options();
  o.sizes.tied = true;
  o.param_groups = "^table$:rate=0";
  const auto expected = run(o, "rate 0");
  o.param_groups = "";
  o.freeze = "table";
  expect_same_losses(expected, run(o, "frozen"), "a tied table");
}

// The checker refuses a program in which a pass trains a frozen layer or leaves out one of its actions.
TEST_F(Freeze, TheCheckerRefusesProgramsThatTrainFrozenLayersOrLeaveThemOut) {
  auto o = options();
  o.freeze = kFrozen;
  o.store = folder_ / "store";
  toy::Training t(o);
  const auto& map = t.engine->map();
  const auto& steady = t.planned.programs.steady;
  ASSERT_NO_THROW(passes::check_step(steady, map, passes::Updates::in_backward));
  const auto refusal = [&](auto change) {
    auto program = steady;
    change(program.actions);
    return test::error_of([&] { passes::check_step(program, map, passes::Updates::in_backward); });
  };
  using Actions = std::vector<Action>;
  constexpr std::uint32_t kBelow = 1, kBetween = 3;  // the frozen blocks 0 and 2
  const auto first_input_half = [](Actions& all) {
    return std::ranges::find_if(all, [](const Action& a) { return a.op == Op::backward_input && a.layer == kBetween; });
  };
  EXPECT_THAT(refusal([&](Actions& all) { all.push_back({.op = Op::backward_input, .layer = kBelow}); }),
              testing::HasSubstr("nothing trains at the layer or below it"));
  EXPECT_THAT(refusal([&](Actions& all) { all.push_back({.op = Op::backward, .layer = kBetween}); }),
              testing::HasSubstr("all parameters of the layer are frozen"));
  EXPECT_THAT(refusal([&](Actions& all) { all.push_back({.op = Op::update, .layer = kBetween}); }),
              testing::HasSubstr("the layer has 0 updates"));
  EXPECT_NE("", refusal([&](Actions& all) {
              const auto left_out = *first_input_half(all);
              std::erase_if(all, [&](const Action& a) {
                return a.op == left_out.op && a.layer == left_out.layer && a.micro_batch == left_out.micro_batch;
              });
            }));
}

TEST_F(Freeze, RefusesWhatItCannotDoAndNamesTheNearest) {
  const auto refusal = [&](const std::string& freeze, auto change) {
    auto o = options();
    o.freeze = freeze;
    change(o);
    return test::refusal_of([&] { toy::Training t(o); });
  };
  const auto as_it_is = [](toy::RunOptions&) {};
  EXPECT_NE(std::string::npos, refusal("block.1", as_it_is).find("blocks.1")) << refusal("block.1", as_it_is);
  EXPECT_NE(std::string::npos, refusal("*", as_it_is).find("no parameter to train"));
  EXPECT_NE(std::string::npos, refusal("a,,b", as_it_is).find("empty pattern"));
}

}  // namespace
}  // namespace terrace
