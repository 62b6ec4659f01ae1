// Data parallelism and ZeRO move and share bytes, and never change them: all ranks agree, all stages agree, and canonical
// reduction gives the bits of one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include <terrace/tests/support/covering_rows.h>

#include "data_parallel_run.h"

namespace terrace {
namespace {

class Zero : public test::FolderTest {
 protected:
  // Of all ranks, which must agree.
  toy::RunResult run(toy::RunOptions o, const std::string& what) {
    o.store = folder_ / ("run" + std::to_string(runs_++));
    o.commit_at_end = o.disk_tier;  // zero_recovery_test.cpp commits
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
  // `base` on one rank, with 24 micro-batches and canonical reduction, gave `one`.
  void expect_same_on_every_degree(const toy::RunResult& one, const toy::RunOptions& base);

  int runs_ = 0;
};

std::string name(const toy::RunOptions& o) {
  return std::to_string(o.data.ranks) + " ranks, ZeRO-" + std::to_string(o.data.zero) +
         (o.data.shard_group == 0 ? "" : " in groups of " + std::to_string(o.data.shard_group)) +
         (o.data.canonical ? ", canonical" : "") + (o.data.gradients != Travel::whole ? ", narrow" : "") + ", " +
         std::string(name_of(o.sizes.dtype)) + ", " + o.recipe + ", " + std::to_string(o.shape.micro_batches) +
         " micro-batches";
}

void Zero::expect_same_on_every_degree(const toy::RunResult& one, const toy::RunOptions& base) {
  for (const auto& data : {DataParallel{.ranks = 2, .zero = 0},
                           {.ranks = 3, .zero = 1},
                           {.ranks = 4, .zero = 2},
                           {.ranks = 8, .zero = 3},
                           {.ranks = 4, .zero = 3, .shard_group = 2}}) {
    auto o = base;
    o.data = data;
    o.data.canonical = true;
    o.data.gradients = base.data.gradients;
    o.shape.micro_batches = 24 / data.ranks;
    expect_same(one, run(o, name(o)), name(o));
  }
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

// Groups of parameters with clip norms of their own, which reach over layers.
TEST_F(Zero, ClippingGroupsGivesTheBitsOfOneRank) {
  toy::RunOptions base;
  base.steps = 3;
  base.shape = {{1, 8}, 6};
  const auto plain = run(base, "not grouped");
  base.param_groups = "\\.a$:clip=0.01; bias|scale:clip=0.02";
  const auto one = run(base, "one rank");
  EXPECT_NE(one.hash, plain.hash);
  for (const std::uint32_t ranks : {2U, 3U})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
      auto o = base;
      o.data = {.ranks = ranks, .zero = zero, .canonical = true};
      o.shape.micro_batches = 6 / ranks;
      expect_same(one, run(o, name(o)), name(o));
    }
}

TEST_F(Zero, CanonicalReductionOfHybridShardsGivesTheBitsOfOneRank) {
  toy::RunOptions base;
  base.steps = 3;
  base.shape = {{1, 8}, 24};
  const auto one = run(base, "one rank");
  for (const auto& [ranks, group] : {std::pair{4U, 2U}, {4U, 1U}, {6U, 3U}, {8U, 2U}, {8U, 4U}, {8U, 8U}})
    for (const std::uint32_t zero : {1U, 2U, 3U}) {
      auto o = base;
      o.data = {.ranks = ranks, .zero = zero, .canonical = true, .shard_group = group};
      o.shape.micro_batches = 24 / ranks;
      expect_same(one, run(o, name(o)), name(o));
    }
}

// Also on disk, and with a tied layer: what is copied moves like what is not.
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

// Each contribution is rounded by itself, so that narrow sums are of one order, too: the same bits for every degree and stage.
TEST_F(Zero, NarrowGradientsAreTheSameBitsOnEveryDegree) {
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
  expect_same_on_every_degree(one, base);
}

TEST_F(Zero, GradientsOfEightBitsAreTheSameBitsOnEveryDegree) {
  toy::RunOptions base;
  base.steps = 3;
  base.sizes.width = 72;  // tensors end within blocks, and what lies between them is nobody's
  base.shape = {{1, 8}, 24};
  const auto exact = run(base, "exact");
  base.data = {.canonical = true, .gradients = Travel::int8};
  const auto one = run(base, "one rank");
  EXPECT_NE(one.hash, exact.hash) << "nothing was rounded";
  EXPECT_EQ(one.losses.front(), exact.losses.front()) << "before the first update";
  EXPECT_NEAR(one.norms.front(), exact.norms.front(), exact.norms.front() * 0.05);
  EXPECT_NEAR(one.losses.back(), exact.losses.back(), std::abs(exact.losses.back()) * 0.01);
  expect_same_on_every_degree(one, base);
}

// Every rank computes with the same weights, its own rounded too: the same bits for every degree, near those of whole ones.
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
  const auto refused = [&](const DataParallel& data) {
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
  const auto refused = [&](const DataParallel& data) {
    o.data = data;
    EXPECT_THROW(static_cast<void>(plan(model, toy::request_of(o), o.profile)), Error) << name(o);
  };
  refused({.ranks = 4, .zero = 2, .shard_group = 3});
  refused({.ranks = 4, .zero = 0, .shard_group = 2});
  refused({.ranks = 6, .zero = 2, .canonical = true, .shard_group = 2});
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

// Sums in another order are the same sums: every degree and stage, with and without accumulation, is close to one rank.
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

// Every two settings together, in some row: dtypes, tiers, orders, ranks and stages. What a row is held against is one rank
// where its reduction is canonical, else replicated ranks; always with everything in the device.
TEST_F(Zero, EveryTwoSettingsTogether) {
  struct Numbers {
    DType dtype;
    const char* recipe;
  };
  const Numbers numbers[] = {{DType::fp32, "fp32"},  {DType::bf16, "fp32"},       {DType::fp64, "fp32"}, {DType::fp32, "8bit"},
                             {DType::bf16, "split"}, {DType::bf16, "stochastic"}, {DType::fp16, "fp32"}};
  const std::uint32_t degrees[] = {2, 3, 4, 8};
  const test::CoveringRows covering({7, 4, 4, 2, 3, 3, 2, 2, 3, 2}, 2);
  std::map<std::string, toy::RunResult> references;
  std::uint64_t read = 0;
  for (const auto& row : covering.rows()) {
    toy::RunOptions o;
    o.steps = 2;
    const auto at = [&](std::size_t factor) { return static_cast<std::size_t>(row[factor]); };
    o.sizes.dtype = numbers[at(0)].dtype;
    o.recipe = numbers[at(0)].recipe;
    o.data = {.ranks = degrees[at(1)], .zero = static_cast<std::uint32_t>(row[2]), .canonical = row[3] == 1};
    // Rounding to bf16 is no reason to differ, but a sum that is folded in another order is.
    o.shape = {{1, 8}, o.data.canonical ? 24 / o.data.ranks : 1};
    const int tiers = row[4];
    o.order = row[5] == 0 ? Order::horizontal : row[5] == 1 ? Order::vertical : Order::group_vertical;
    o.group = 2;
    o.before_use = row[6] == 0;
    o.recompute = row[7] == 1;
    o.depth = row[8] == 0 ? 0 : row[8] == 1 ? kAutoDepth : 4;
    o.sizes.tied = row[9] == 0;

    auto plain = o;
    plain.order = Order::horizontal;
    plain.recompute = false;
    plain.depth = 1;
    plain.data = {.ranks = o.data.canonical ? 1 : o.data.ranks};
    plain.shape.micro_batches = o.data.canonical ? 24 : 1;
    const auto key = name(plain) + (o.before_use ? ", clipped" : "") + (o.sizes.tied ? ", tied" : "");
    if (!references.contains(key)) references[key] = run(plain, key);

    const auto what = name(o) + ", tiers " + std::to_string(tiers) + ", order " + std::to_string(row[5]) +
                      (o.before_use ? ", clipped" : "") + (o.recompute ? ", recomputed" : "") + ", depth " +
                      std::to_string(row[8]) + (o.sizes.tied ? ", tied" : "");
    if (tiers > 0) {
      toy::squeeze(o, tiers == 2);
    }
    const auto r = run(o, what);
    expect_same(references[key], r, what);
    EXPECT_LE(r.peak[Tier::device], o.budget.device) << what;
    EXPECT_LE(r.peak[Tier::host], o.budget.host) << what;
    if (tiers == 2 && !r.traffic.empty()) read += r.traffic.back().read;
  }
  EXPECT_GE(covering.rows().size(), 24U);
  EXPECT_GT(read, 0U);
}

}  // namespace
}  // namespace terrace
