// Data parallelism and ZeRO move and share bytes, and never change them: all ranks agree, all stages agree, and canonical
// reduction gives the bits of one rank.
#include <gtest/gtest.h>

#include <filesystem>

#include "data_parallel_run.h"

namespace terrace {
namespace {

class Zero : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path("zero-test") / testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Of all ranks, which must agree.
  toy::RunResult run(toy::RunOptions o, const std::string& what) {
    o.store = folder_ / ("run" + std::to_string(runs_++));
    auto all = toy::run_ranks(o);
    for (std::size_t r = 0; r < all.errors.size(); ++r) EXPECT_EQ(all.errors[r], "") << what << ", rank " << r;
    for (std::size_t r = 1; r < all.ranks.size(); ++r)
      expect_same(all.ranks[0], all.ranks[r], what + ", rank " + std::to_string(r));
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

std::string name(const toy::RunOptions& o) {
  return std::to_string(o.data.ranks) + " ranks, ZeRO-" + std::to_string(o.data.zero) +
         (o.data.canonical ? ", canonical" : "") + ", " + std::string(name_of(o.sizes.dtype)) + ", " + o.recipe + ", " +
         std::to_string(o.shape.micro_batches) + " micro-batches";
}

// m = 24 micro-batches in all, dealt to every degree that divides them.
TEST_F(Zero, CanonicalReductionGivesTheBitsOfOneRank) {
  toy::RunOptions base;
  base.steps = 3;
  base.shape = {{1, 8}, 24};
  const auto one = run(base, "one rank");
  for (const std::uint32_t ranks : {1U, 2U, 3U, 4U, 8U})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
      auto o = base;
      o.data = {.ranks = ranks, .zero = zero, .canonical = true};
      o.shape.micro_batches = 24 / ranks;
      expect_same(one, run(o, name(o)), name(o));
    }
}

TEST_F(Zero, StagesAreTheSameBitsWithoutAccumulation) {
  for (const std::uint32_t ranks : {2U, 3U, 4U, 8U}) {
    toy::RunOptions base;
    base.steps = 4;
    base.shape = {{1, 8}, 1};
    base.data.ranks = ranks;
    const auto replicated = run(base, name(base));
    for (const std::uint32_t zero : {1U, 2U, 3U}) {
      auto o = base;
      o.data.zero = zero;
      expect_same(replicated, run(o, name(o)), name(o));
    }
  }
}

}  // namespace
}  // namespace terrace
