// One rank with real files and real I/O: it moves what was planned, each layer treats its activations by its own setting, and
// evaluations and skipped steps leave no trace. (one_rank_bits_test.cpp combines all settings.)
#include <gtest/gtest.h>

#include <set>

#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

class EngineRun : public test::FolderTest {
 protected:
  toy::RunResult run(toy::RunOptions o, const std::string& store = "store") {
    o.store = folder_ / store;
    return toy::run(o);
  }
  static void expect_same(const toy::RunResult& a, const toy::RunResult& b, const std::string& what) {
    ASSERT_TRUE(b.planned.fits) << what << ": " << b.planned.refusal.why;
    ASSERT_EQ(a.losses.size(), b.losses.size()) << what;
    for (std::size_t i = 0; i < a.losses.size(); ++i) EXPECT_EQ(a.losses[i], b.losses[i]) << what << ", loss " << i;
    for (std::size_t i = 0; i < a.norms.size(); ++i) EXPECT_EQ(a.norms[i], b.norms[i]) << what << ", norm " << i;
    EXPECT_EQ(a.hash, b.hash) << what;
  }
};

// Some of the layers are recomputed, some offloaded, some both and some neither; each layer moves bytes by its own setting.
TEST_F(EngineRun, EveryLayerMayTreatItsActivationsItsOwnWay) {
  toy::RunOptions o;
  const auto reference = run(o);
  std::set<std::uint64_t> downloads;
  for (std::uint32_t pattern = 1; pattern < 64; pattern += 7) {
    o.activations.assign(5, {});
    for (std::uint32_t l = 0; l < 3; ++l) o.activations[1 + l] = {((pattern >> l) & 1U) != 0, ((pattern >> (3 + l)) & 1U) != 0};
    o.order = pattern % 2 == 0 ? Order::vertical : Order::group_vertical;
    o.group = 2;
    const auto r = run(o);
    expect_same(reference, r, "pattern " + std::to_string(pattern));
    EXPECT_EQ(r.traffic.back(), r.planned.step_traffic.back()) << "pattern " << pattern;
    EXPECT_EQ(r.traffic.back().download > 0, pattern >= 8) << "pattern " << pattern;  // in this budget, nothing else moves
    downloads.insert(r.traffic.back().download);
    o.budget = {reference.planned.smallest_bytes[Tier::device], 2 * kMiB, 256 * kMiB};
    o.disk_tier = true;
    expect_same(reference, run(o), "offloaded, pattern " + std::to_string(pattern));
    o.budget = {kUnlimited, kUnlimited, 0};
    o.disk_tier = false;
  }
  EXPECT_GE(downloads.size(), 5U);
}

TEST_F(EngineRun, PlannedIsMeasured) {
  toy::RunOptions o;
  o.steps = 7;
  const auto wide = run(o);
  o.disk_tier = true;
  for (const std::uint32_t depth : {0U, 2U})
    for (const auto order : {Order::horizontal, Order::vertical}) {
      o.budget = {wide.planned.smallest_bytes[Tier::device], 768 * kKiB, 256 * kMiB};
      o.depth = depth;
      o.order = order;
      const auto r = run(o);
      ASSERT_TRUE(r.planned.fits) << r.planned.refusal.why;
      ASSERT_GE(r.planned.step_traffic.size(), r.traffic.size());
      for (std::size_t i = 0; i < r.traffic.size(); ++i) EXPECT_EQ(r.traffic[i], r.planned.step_traffic[i]) << "step " << i + 1;
      EXPECT_GT(r.traffic.back().read, 0U);
      EXPECT_EQ(r.peak[Tier::device], r.planned.peak_bytes[Tier::device]);
      EXPECT_EQ(r.peak[Tier::host], r.planned.peak_bytes[Tier::host]);
      EXPECT_EQ(r.peak[Tier::disk], r.planned.peak_bytes[Tier::disk]);
    }
}

TEST_F(EngineRun, EvaluationChangesNothing) {
  toy::RunOptions o;
  o.evaluate_between = true;
  const auto reference = run(o);
  o.budget = {reference.planned.smallest_bytes[Tier::device], 1 * kMiB, 256 * kMiB};
  o.disk_tier = true;
  expect_same(reference, run(o), "offloaded");
  toy::RunOptions plain;
  EXPECT_EQ(run(plain).hash, reference.hash);
}

// Skipping the first step, one in the middle, and the last.
TEST_F(EngineRun, ASkippedStepLeavesNoTrace) {
  const auto smallest = run({}).planned.smallest_bytes[Tier::device];
  for (const std::uint64_t step : {1U, 3U, 6U}) {
    toy::RunOptions o;
    o.left_out_step = step;
    const auto expected = run(o);
    o.left_out_step = 0;
    o.not_finite_step = step;
    for (const bool disk : {false, true}) {
      if (disk) {
        o.budget = {smallest, 768 * kKiB, 256 * kMiB};
        o.disk_tier = true;
      }
      auto got = run(o);
      ASSERT_TRUE(got.planned.fits);
      EXPECT_TRUE(std::isnan(got.norms.at(step - 1))) << step;
      got.losses.erase(got.losses.begin() + static_cast<std::ptrdiff_t>(step - 1));
      got.norms.erase(got.norms.begin() + static_cast<std::ptrdiff_t>(step - 1));
      expect_same(expected, got, "step " + std::to_string(step) + (disk ? " on disk" : " in memory"));
    }
  }
}

TEST_F(EngineRun, AnUpdateInTheBackwardCannotBeSkipped) {
  toy::RunOptions o;
  o.before_use = false;
  o.not_finite_step = 2;
  EXPECT_THROW(run(o), std::logic_error);
}

TEST_F(EngineRun, ResumingAnotherModelIsRefused) {
  toy::RunOptions o;
  o.commit_after = 2;
  run(o);
  o.resume = true;
  o.sizes.width = 128;
  EXPECT_THROW(run(o), Error);
}

}  // namespace
}  // namespace terrace
