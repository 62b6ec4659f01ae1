// Data parallelism and ZeRO move and share bytes but never change them: all ranks and all stages agree, even if sums are not
// canonical. (If they are, one_rank_bits_test.cpp has the bits of one rank.)
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include <terrace/tests/parallel/zero/data_parallel_run.h>
#include <terrace/tests/support/data_ranks.h>

namespace terrace {
namespace {

class Zero : public test::FolderTest {
 protected:
  // Runs on all ranks, whose results must agree.
  toy::RunResult run(toy::RunOptions o, const std::string& what) {
    o.store = folder_ / ("run" + std::to_string(runs_++));
    o.commit_at_end = o.disk_tier;  // zero_recovery_test.cpp tests commits
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

  int runs_ = 0;
};

std::string name(const toy::RunOptions& o) {
  return std::to_string(o.data.ranks) + " ranks, ZeRO-" + std::to_string(o.data.zero) +
         (o.data.shard_group == 0 ? "" : " in groups of " + std::to_string(o.data.shard_group)) +
         (o.data.canonical ? ", canonical" : "") + (o.data.gradients != Travel::whole ? ", narrow" : "") + ", " +
         std::string(name_of(o.sizes.dtype)) + ", " + o.recipe + ", " + std::to_string(o.shape.micro_batches) +
         " micro-batches";
}

// Also on disk, and with a tied layer: shards that have replicas move like shards that have none.
TEST_F(Zero, HybridShardsAreTheSameBitsInEveryStageAndTier) {
  for (const auto& [ranks, group] : {std::pair{4U, 2U}, {6U, 2U}, {8U, 4U}}) {
    toy::RunOptions base;
    base.steps = 3;
    base.sizes.tied = true;
    base.shape = {{1, 8}, 1};
    base.data = {.ranks = ranks, .zero = 1, .shard_group = group};
    const auto first = run(base, name(base));
    for (const std::uint32_t zero : {2U, 3U}) {
      auto o = base;
      o.data.zero = zero;
      expect_same(first, run(o, name(o)), name(o));
      toy::squeeze(o, true);
      expect_same(first, run(o, name(o) + ", disk"), name(o) + ", disk");
    }
  }
}

TEST_F(Zero, HybridShardsAreOneRankButForRounding) {
  toy::RunOptions base;
  base.steps = 2;
  base.sizes.dtype = DType::fp64;
  base.shape = {{1, 8}, 8};
  const auto one = run(base, name(base));
  for (const auto& [ranks, group, zero] : {std::tuple{4U, 2U, 1U}, {4U, 2U, 2U}, {8U, 2U, 3U}, {8U, 4U, 2U}}) {
    auto o = base;
    o.shape.micro_batches = 8 / ranks;
    o.data = {.ranks = ranks, .zero = zero, .shard_group = group};
    const auto many = run(o, name(o));
    ASSERT_EQ(many.losses.size(), one.losses.size());
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(many.losses[s], one.losses[s], 5e-12 * one.losses[s]) << name(o) << ", step " << s + 1;
      EXPECT_NEAR(many.norms[s], one.norms[s], 5e-12 * one.norms[s]) << name(o) << ", step " << s + 1;
    }
  }
}

TEST_F(Zero, NarrowGradientsAreOffByTheirRounding) {
  toy::RunOptions base;
  base.steps = 3;
  base.shape = {{1, 8}, 24};
  const auto exact = run(base, "exact");
  base.data = {.canonical = true, .gradients = Travel::bf16};
  const auto one = run(base, "one rank");
  EXPECT_NE(one.hash, exact.hash) << "nothing was rounded";
  EXPECT_EQ(one.losses.front(), exact.losses.front()) << "before the first update";
  // Every element of a gradient is off by at most 2^-8 of its contributions' magnitudes.
  EXPECT_NEAR(one.norms.front(), exact.norms.front(), exact.norms.front() / 256 * 24);
}

TEST_F(Zero, GradientsOfEightBitsAreOffByTheirRounding) {
  toy::RunOptions base;
  base.steps = 3;
  base.sizes.width = 72;  // tensors end within blocks; the space between tensors is unused
  base.shape = {{1, 8}, 24};
  const auto exact = run(base, "exact");
  base.data = {.canonical = true, .gradients = Travel::int8};
  const auto one = run(base, "one rank");
  EXPECT_NE(one.hash, exact.hash) << "nothing was rounded";
  EXPECT_EQ(one.losses.front(), exact.losses.front()) << "before the first update";
  EXPECT_NEAR(one.norms.front(), exact.norms.front(), exact.norms.front() * 0.05);
  EXPECT_NEAR(one.losses.back(), exact.losses.back(), std::abs(exact.losses.back()) * 0.01);
}

// Every rank computes with the same rounded weights, its own shard included, so every degree gives the same bits, near those of
// whole weights.
TEST_F(Zero, WeightsOfEightBitsAreTheSameBitsOnEveryDegree) {
  for (const auto dtype : {DType::fp32, DType::bf16}) {
    toy::RunOptions base;
    base.steps = 3;
    base.sizes.dtype = dtype;
    base.sizes.width = 72;
    base.shape = {{1, 8}, 24};
    const auto exact = run(base, "exact");
    base.data = {.ranks = 2, .zero = 3, .canonical = true, .weights = Travel::int8};
    base.shape.micro_batches = 12;
    const auto two = run(base, "two ranks");
    EXPECT_NE(two.losses.front(), exact.losses.front()) << "nothing was rounded";
    for (std::size_t s = 0; s < two.losses.size(); ++s)
      EXPECT_NEAR(two.losses[s], exact.losses[s], std::abs(exact.losses[s]) * 0.01) << "step " << s + 1;
    for (const auto& [ranks, group] : {std::pair{3U, 0U}, {8U, 0U}, {4U, 2U}}) {
      auto o = base;
      o.data.ranks = ranks;
      o.data.shard_group = group;
      o.shape.micro_batches = 24 / ranks;
      expect_same(two, run(o, name(o)), name(o));
    }
  }
}

TEST_F(Zero, NarrowGradientsThatCannotBeAreRefused) {
  toy::RunOptions o;
  const auto refused = [&](const test::DataRanks& data) {
    o.data = data;
    EXPECT_THROW(static_cast<void>(plan(toy::make_model(o.sizes), toy::request_of(o), o.profile)), Error) << name(o);
  };
  refused({.ranks = 2, .zero = 0, .gradients = Travel::bf16});
  refused({.ranks = 2, .zero = 1, .gradients = Travel::bf16});
  refused({.ranks = 2, .zero = 2, .weights = Travel::int8});
  refused({.ranks = 2, .zero = 3, .weights = Travel::bf16});
  refused({.ranks = 64, .zero = 3, .canonical = true, .gradients = Travel::int8, .shard_group = 2});
  o.sizes.dtype = DType::fp64;
  refused({.ranks = 2, .zero = 3, .weights = Travel::int8});
  refused({.ranks = 2, .zero = 2, .gradients = Travel::bf16});
  o.sizes.dtype = DType::fp16;
  refused({.ranks = 2, .zero = 3, .weights = Travel::int8});
  o.sizes.dtype = DType::bf16;
  o.recipe = "all-bf16";
  refused({.ranks = 2, .zero = 2, .gradients = Travel::bf16});
}

TEST_F(Zero, HybridShardsThatCannotBeAreRefused) {
  toy::RunOptions o;
  const auto model = toy::make_model(o.sizes);
  const auto refused = [&](const test::DataRanks& data) {
    o.data = data;
    EXPECT_THROW(static_cast<void>(plan(model, toy::request_of(o), o.profile)), Error) << name(o);
  };
  refused({.ranks = 4, .zero = 2, .shard_group = 3});
  refused({.ranks = 4, .zero = 0, .shard_group = 2});
  refused({.ranks = 6, .zero = 2, .canonical = true, .shard_group = 2});
}

// Each stage also in another order and tier.
TEST_F(Zero, StagesAreTheSameBitsWithoutAccumulation) {
  for (const auto& [ranks, dtype, recipe] : {std::tuple{2U, DType::bf16, "stochastic"},
                                             {3U, DType::fp32, "fp32"},
                                             {4U, DType::bf16, "split"},
                                             {6U, DType::fp32, "8bit"},
                                             {8U, DType::fp16, "fp32"}}) {
    toy::RunOptions base;
    base.steps = 4;
    base.sizes.dtype = dtype;
    base.recipe = recipe;
    base.shape = {{1, 8}, 1};
    base.data.ranks = ranks;
    const auto replicated = run(base, name(base));
    for (const std::uint32_t zero : {1U, 2U, 3U}) {
      auto o = base;
      o.data.zero = zero;
      expect_same(replicated, run(o, name(o)), name(o));
      o.order = zero == 2 ? Order::horizontal : Order::vertical;
      o.recompute = zero != 2;
      toy::squeeze(o, zero != 1);
      expect_same(replicated, run(o, name(o) + ", squeezed"), name(o) + ", squeezed");
    }
  }
}

// Another order of the sums changes only their rounding: every degree and stage, with and without accumulation, is close to one
// rank.
TEST_F(Zero, EveryDegreeIsOneRankButForRounding) {
  for (const auto& [dtype, tolerance] : {std::pair{DType::fp64, 1e-12}, {DType::fp32, 2e-5}})
    for (const std::uint32_t micro_batches : {8U, 24U}) {
      toy::RunOptions base;
      base.steps = 2;
      base.sizes.dtype = dtype;
      base.shape = {{1, 8}, micro_batches};
      const auto one = run(base, name(base));
      for (const std::uint32_t ranks : {2U, 4U, 8U}) {
        auto o = base;
        o.shape.micro_batches = micro_batches / ranks;
        o.data = {.ranks = ranks, .zero = (ranks + micro_batches) / 2 % 4};
        const auto many = run(o, name(o));
        ASSERT_EQ(many.losses.size(), one.losses.size());
        for (std::size_t s = 0; s < one.losses.size(); ++s) {
          EXPECT_NEAR(many.losses[s], one.losses[s], tolerance * 5 * one.losses[s]) << name(o) << ", step " << s + 1;
          EXPECT_NEAR(many.norms[s], one.norms[s], tolerance * 5 * one.norms[s]) << name(o) << ", step " << s + 1;
        }
      }
    }
}

}  // namespace
}  // namespace terrace
