// A call in phases gives the bits of the whole call, and needs no more of the device than its largest phase uses.
#include <gtest/gtest.h>

#include <algorithm>

#include <terrace/core/base/error.h>
#include <terrace/parallel/map/program_bytes.h>
#include <terrace/parallel/passes/checker.h>
#include <terrace/parallel/passes/passes.h>
#include <terrace/parallel/passes/phase_pass.h>
#include <terrace/parallel/program/orders.h>

#include <terrace/tests/parallel/pipeline/pipeline_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

class Phases : public test::FolderTest {
 protected:
  toy::RunResult run(toy::RunOptions o) {
    o.store = folder_ / "store";
    return toy::run(o);
  }
  static void expect_same(const toy::RunResult& a, const toy::RunResult& b, const std::string& what) {
    ASSERT_TRUE(a.planned.fits) << what << ": " << a.planned.refusal.why;
    ASSERT_TRUE(b.planned.fits) << what << ": " << b.planned.refusal.why;
    EXPECT_EQ(a.losses, b.losses) << what;
    EXPECT_EQ(a.norms, b.norms) << what;
    EXPECT_EQ(a.hash, b.hash) << what;
  }
};

// The two halves of a backward run at different times, so they share only what the first half carries to the second.
class PhasesOfRanks : public test::PipelineRun {};

// With old weights, too. (one_rank_bits_test.cpp has the synchronous orders.)
TEST_F(PhasesOfRanks, GiveTheBitsOfWholeCallsWithOldWeights) {
  for (const std::uint32_t zero : {0U, 1U, 3U}) {
    toy::RunOptions o;
    o.sizes.blocks = 4;
    o.sizes.tied = false;
    o.shape.micro_batches = 4;
    o.pipeline = test::pipeline_of("pipedream", 2, 4, 1, 4);
    o.data = {.ranks = 2, .zero = zero, .canonical = true};
    const auto what = fmt::format("stage {}", zero);
    const auto whole = run(o, what);
    o.sizes.phases = true;
    for (const bool squeezed : {false, true}) {
      if (squeezed) test::squeeze_stages(o, false);
      expect_same(whole, run(o, what + ", in phases"), what);
    }
  }
}

// The sizes are those that a block declares: one row for an activation, two for an inner one and for the scratch. A whole
// backward holds x, dy, dx, u, du, g, scratch, all weights and their gradients; the largest phase holds dy, u, du, g, scratch
// and the weights. The planner needs a budget that is at most one chunk larger.
TEST_F(Phases, TheSmallestDeviceBudgetIsThatOfTheLargestPhase) {
  constexpr std::uint64_t kRow = 4 * 128 * 64 * 4, kInner = 2 * kRow;
  std::vector<std::uint64_t> smallest;
  for (const bool phases : {false, true}) {
    toy::RunOptions o;
    o.sizes = {.width = 64, .vocab = 256, .blocks = 2, .tied = false, .phases = phases};
    o.shape = {{4, 128}, 1};
    const auto planned = run(o).planned;
    const auto model = toy::make_model(o.sizes);
    const StepMap map(model, planned.map);
    const auto chunk = map.layout().chunk_elements() * 4, weights = map.layout().chunks_of(1) * chunk;
    const auto formula = phases ? kRow + 4 * kInner + weights : 3 * kRow + 4 * kInner + 2 * weights;
    EXPECT_EQ(mapping::largest_use(map, planned.programs.steady, Tier::device), formula);
    smallest.push_back(planned.smallest_bytes[Tier::device]);
    EXPECT_GE(smallest.back(), formula);
    EXPECT_LE(smallest.back(), formula + chunk);
  }
  EXPECT_LT(smallest[1], smallest[0]);
}

class PhaseChecker : public testing::Test {
 protected:
  Model model = toy::make_model({.phases = true});
  StepMap map{model, {.shape = {{2, 16}, 2}}};
  [[nodiscard]] Program step() const {
    return passes::with_phases(
        passes::with_updates(passes::with_norms(orders::horizontal(5, 2), map), map, passes::Updates::in_backward), map);
  }
  std::string refusal(const Program& p) {
    return test::error_of([&] { passes::check_step(p, map, passes::Updates::in_backward); });
  }
};

TEST_F(PhaseChecker, RefusesAMissingARepeatedAndAnEarlyPhase) {
  const auto p = step();
  EXPECT_EQ(refusal(p), "");
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    auto missing = p;
    missing.actions.erase(missing.actions.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(refusal(missing), "") << "without " << to_text(p.actions[i]);
    auto repeated = p;
    repeated.actions.insert(repeated.actions.begin() + static_cast<std::ptrdiff_t>(i), p.actions[i]);
    EXPECT_NE(refusal(repeated), "") << "twice " << to_text(p.actions[i]);
    if (p.actions[i].phase == 0) continue;
    auto early = p;
    std::swap(early.actions[i - 1], early.actions[i]);
    EXPECT_NE(refusal(early), "") << "early " << to_text(p.actions[i]);
  }
}

TEST_F(PhaseChecker, NamesThePhaseThatIsMissing) {
  auto p = step();
  const auto at = std::ranges::find(p.actions, Action{.op = Op::forward, .layer = 1, .phase = 1});
  ASSERT_NE(at, p.actions.end());
  p.actions.erase(at);
  EXPECT_NE(refusal(p).find("the next phase of 'forward l1 m0' must run first"), std::string::npos) << refusal(p);
}

TEST_F(PhaseChecker, ARecomputationStopsOnceAllIsSaved) {
  StepMap recomputing(model, {.shape = {{2, 16}, 1}, .activations = choose_activations(model, {2, 16}, kAllLayers, 0)});
  const auto p = passes::with_phases(passes::with_recompute(orders::horizontal(5, 1), recomputing), recomputing);
  std::vector<std::string> texts;
  for (const auto& a : p.actions)
    if (a.layer == 2) texts.push_back(to_text(a));
  EXPECT_EQ(texts, (std::vector<std::string>{"forward l2 m0", "forward l2 m0 p1", "recompute l2 m0", "backward l2 m0",
                                             "backward l2 m0 p1", "backward l2 m0 p2", "backward l2 m0 p3"}));
}

TEST_F(PhaseChecker, APhaseIsReadBackFromText) {
  const auto p = step();
  EXPECT_EQ(parse_program(to_text(p)), p);
}

}  // namespace
}  // namespace terrace
