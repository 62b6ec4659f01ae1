// The warpgroups' attention, run through the emulated lane and compared with an fp64 oracle, the CPU's math and the warps'
// kernel; also with one operation at a time left out, which the tests must detect.
#include <terrace/core/cuda/attention_choice.h>
#include <terrace/core/cuda/kernels/attention_warpgroup_launch.h>

#include <gmock/gmock.h>

#include <terrace/tests/cuda/attention_fixture.h>
#include <terrace/tests/cuda/sabotaged_lane.h>

namespace terrace::test {
namespace {

// Odd lengths around the edges of tiles of 64, 128 and 192; one, two and several tiles of keys; heads that share keys.
const std::vector<AttentionShape> kShapes = {{1, 1, 1, 1, 64},   {2, 70, 3, 3, 64},  {1, 193, 4, 2, 64},  {1, 402, 2, 1, 64},
                                             {1, 128, 2, 1, 96}, {1, 389, 1, 1, 96}, {2, 129, 2, 1, 128}, {1, 520, 2, 2, 128}};

class WarpgroupAttentionTest : public AttentionCase {
 protected:
  Forward forward(const AttentionShape& s, const Tensor& qkv, std::uint64_t schedule = 0) {
    auto f = places(s, qkv.dtype());
    f.out.poison(), f.lse.poison();
    cuda::attention_of_warpgroups(EmulatedLauncher{&counts, schedule}, s, f.out, f.lse, qkv);
    return f;
  }
};

TEST_F(WarpgroupAttentionTest, EqualsTheOracleTheCpuAndTheWarpsKernel) {
  for (const auto& s : kShapes) {
    SCOPED_TRACE(text(s, DType::bf16));
    ASSERT_TRUE(cuda::warpgroups_serve(DType::bf16, s));
    const auto qkv = random(DType::bf16, qkv_shape(s), -2, 2);
    const AttentionOracle want(s, qkv.values(), {});
    const auto got = forward(s, qkv);
    expect_near(got.out, want.out, tolerance(DType::bf16), "out");
    expect_near(got.lse, want.lse, tolerance(DType::fp32), "lse");

    const auto cpu = cpu_forward(s, qkv);
    expect_near(got.out, cpu.out.values(), 2 * tolerance(DType::bf16), "out beside the CPU's");
    expect_near(got.lse, cpu.lse.values(), 2 * tolerance(DType::fp32), "lse beside the CPU's");
    auto warps = places(s, DType::bf16);
    cuda::attention(EmulatedLauncher{&counts}, s, warps.out, warps.lse, qkv);
    expect_near(got.out, warps.out.values(), 2 * tolerance(DType::bf16), "out beside the warps'");
    expect_near(got.lse, warps.lse.values(), 2 * tolerance(DType::fp32), "lse beside the warps'");
  }
  EXPECT_GT(counts.products_async, 0);
}

TEST_F(WarpgroupAttentionTest, BitsDependOnNothingElse) {
  for (const auto& s : {AttentionShape{1, 400, 2, 1, 64}, AttentionShape{1, 300, 1, 1, 128}}) {
    const auto qkv = random(DType::bf16, qkv_shape(s), -2, 2);
    const auto first = forward(s, qkv);
    for (const std::uint64_t schedule : {std::uint64_t{0}, std::uint64_t{1}, seed | 2, (seed | 2) + 1}) {
      const auto again = forward(s, qkv, schedule);
      EXPECT_EQ(first.out.bits(), again.out.bits()) << "schedule " << schedule;
      EXPECT_EQ(first.lse.bits(), again.lse.bits()) << "schedule " << schedule;
    }
  }
}

// Scores of some hundreds; a late maximum must rescale the earlier sums.
TEST_F(WarpgroupAttentionTest, KeepsLargeScores) {
  const AttentionShape s{1, 410, 1, 1, 64};
  auto qkv = random(DType::bf16, qkv_shape(s), -8, 8);
  for (std::int64_t d = 0; d < 64; ++d) {
    for (const std::int64_t t : {70, 140, 300}) qkv.set(t * 192 + 64 + d, 8 * (d % 2 == 0 ? 1 : -1) * (t == 140 ? 2 : 1));
    qkv.set(409 * 192 + d, d % 2 == 0 ? 8 : -8);
  }
  const AttentionOracle want(s, qkv.values(), {});
  const auto got = forward(s, qkv);
  expect_near(got.out, want.out, tolerance(DType::bf16), "out");
  expect_near(got.lse, want.lse, tolerance(DType::fp32), "lse");
}

TEST_F(WarpgroupAttentionTest, WhatItDoesNotServeIsRefused) {
  const AttentionShape s{1, 4, 1, 1, 32};
  const Tensor qkv(DType::bf16, qkv_shape(s)), shifted(DType::bf16, qkv_shape({1, 4, 1, 1, 64}), 1);
  EXPECT_FALSE(cuda::warpgroups_serve(DType::bf16, {1, 4, 1, 1, 32}));
  EXPECT_FALSE(cuda::warpgroups_serve(DType::fp16, {1, 4, 1, 1, 64}));
  EXPECT_FALSE(cuda::warpgroups_serve(
      DType::bf16, {.batch = 1, .seq = 4, .heads = 1, .kv_heads = 1, .head_dim = 64, .scores = {.cap = 50}}));
  EXPECT_THROW(forward(s, qkv), std::logic_error);
  EXPECT_THROW(forward({1, 4, 1, 1, 64}, shifted), std::logic_error);
}

template <Sabotage kSabotage>
struct SabotagedAttention {
  void operator()(EmulatedLane& lane, const cuda::AttentionArgs<bf16>& args) const {
    SabotagedLane<kSabotage> sabotaged{lane};
    cuda::WarpgroupAttention<64>{}(sabotaged, args);
  }
};

// With one schedule: an error, "right" or "wrong".
class WarpgroupAttentionSabotage : public AttentionCase {
 protected:
  template <Sabotage kSabotage>
  std::string outcome(std::uint64_t schedule) {
    const AttentionShape s{1, 420, 1, 1, 64};
    const auto qkv = random(DType::bf16, qkv_shape(s), -2, 2);
    auto f = places(s, DType::bf16);
    f.out.poison();
    using Kernel = cuda::WarpgroupAttention<64>;
    try {
      emulate<SabotagedAttention<kSabotage>>({.blocks = {1, cuda::ceil_div(s.seq, Kernel::kQueries), 1},
                                              .threads = Kernel::kThreads,
                                              .shared_bytes = Kernel::kSharedBytes},
                                             cuda::attention_args<bf16>(s, f.out, f.lse, qkv), schedule);
    } catch (const EmulationError& e) {
      return e.what();
    }
    const AttentionOracle want(s, qkv.values(), {});
    for (std::size_t i = 0; i < want.out.size(); ++i) {
      if (!(std::abs(f.out.get(static_cast<std::int64_t>(i)) - want.out[i]) <= 2 * tolerance(DType::bf16))) return "wrong";
    }
    return "right";
  }
  template <Sabotage kSabotage>
  void expect(const char* name, const std::string& what) {
    for (const std::uint64_t schedule : {0, 1, 2, 3})
      EXPECT_THAT(outcome<kSabotage>(schedule), testing::HasSubstr(what)) << name << ", schedule " << schedule;
  }
};

TEST_F(WarpgroupAttentionSabotage, EveryOperationIsNeeded) {
  const std::string not_shown = "which nobody has copied, waited for and shown";
  expect<Sabotage::none>("none", "right");
  expect<Sabotage::no_wait_for_copies>("no_wait_for_copies", not_shown);
  expect<Sabotage::one_group_of_copies_less>("one_group_of_copies_less", not_shown);
  expect<Sabotage::no_fence_for_memory>("no_fence_for_memory", not_shown);
  expect<Sabotage::no_fence_of_registers>("no_fence_of_registers", "without fence_products()");
  expect<Sabotage::no_wait_for_products>("no_wait_for_products", "products that it has not waited for");
  expect<Sabotage::no_wait_for_the_scores>("no_wait_for_the_scores", "sums were written while a product was under way");
  for (const std::uint64_t schedule : {0, 1, 2, 3}) {
    EXPECT_NE(outcome<Sabotage::base_not_aligned>(schedule), "right");
    EXPECT_NE(outcome<Sabotage::no_commit>(schedule), "right");
    EXPECT_NE(outcome<Sabotage::no_wait_for_the_sums>(schedule), "right");
  }
}

// A missing barrier only shows in a schedule in which one warpgroup runs ahead of another.
TEST_F(WarpgroupAttentionSabotage, SomeScheduleShowsAMissingBarrier) {
  int shown = 0;
  for (std::uint64_t schedule = 0; schedule < 4; ++schedule) shown += outcome<Sabotage::no_sync>(schedule) != "right" ? 1 : 0;
  EXPECT_GT(shown, 0);
}

}  // namespace
}  // namespace terrace::test
