// A pipeline moves computations between ranks and never changes them: every order, on every number of ranks and stages, gives
// the bits of one rank that accumulates the same micro-batches.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <filesystem>
#include <map>

#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/pipeline.h>

#include "data_parallel_run.h"

namespace terrace {
namespace {

class PipelineRun : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path("pipeline-run-test") / testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Of all ranks, which must agree.
  toy::RunResult run(toy::RunOptions o, const std::string& what) {
    o.store = folder_ / ("run" + std::to_string(runs_++));
    o.commit_at_end = o.disk_tier;
    auto all = toy::run_ranks(o);
    for (std::size_t r = 0; r < all.errors.size(); ++r) EXPECT_EQ(all.errors[r], "") << what << ", rank " << r;
    for (std::size_t r = 1; r < all.ranks.size(); ++r)
      expect_same(all.ranks[0], all.ranks[r], fmt::format("{}, rank {}", what, r));
    std::filesystem::remove_all(o.store);
    return std::move(all.ranks[0]);
  }
  static void expect_same(const toy::RunResult& a, const toy::RunResult& b, const std::string& what) {
    ASSERT_TRUE(b.planned.fits) << what << ": " << b.planned.refusal.why;
    EXPECT_EQ(a.losses, b.losses) << what;
    EXPECT_EQ(a.norms, b.norms) << what;
    EXPECT_EQ(a.hash, b.hash) << what;
  }
  std::filesystem::path folder_;
  int runs_ = 0;
};

pipeline::Pipeline pipeline_of(const std::string& order, std::uint32_t ranks, std::uint32_t micro_batches, std::uint32_t chunks,
                               std::int64_t blocks) {
  const auto schedule = pipeline::write_order(order, {.ranks = ranks, .micro_batches = micro_batches, .chunks = chunks});
  const std::vector<double> costs(static_cast<std::size_t>(blocks) + 2, 1.0);
  return {schedule, pipeline::balance(costs, schedule.placement.stages)};
}

TEST_F(PipelineRun, EverySynchronousOrderGivesTheBitsOfOneRank) {
  toy::RunOptions base;
  base.steps = 3;
  base.sizes.blocks = 4;
  base.shape = {{1, 8}, 6};
  base.evaluate_between = true;
  const auto one = run(base, "one rank");
  for (const auto* const order : {"layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"})
    for (const std::uint32_t ranks : {1U, 2U, 3U}) {
      if (std::string(order) == "dualpipe-v" && ranks == 1) continue;
      auto o = base;
      o.pipeline = pipeline_of(order, ranks, 6, 2, o.sizes.blocks);
      const auto what = fmt::format("{} on {} ranks", order, ranks);
      expect_same(one, run(o, what), what);
    }
}

}  // namespace
}  // namespace terrace
