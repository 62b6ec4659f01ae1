// The backward of the warpgroups' attention, run through the emulated lane and compared with an fp64 oracle, the CPU's math and
// the warps' kernels; also with one operation at a time left out, which the tests must detect.
#include <terrace/core/cuda/attention_choice.h>
#include <terrace/core/cuda/kernels/attention_warpgroup_launch.h>

#include <gmock/gmock.h>

#include <terrace/tests/cuda/attention_fixture.h>
#include <terrace/tests/cuda/sabotaged_lane.h>

namespace terrace::test {
namespace {

class WarpgroupAttentionGrad : public AttentionCase {
 protected:
  struct Inputs {
    Tensor qkv, dout;
    Forward f;  // from the CPU, so that any error comes from the backward
  };
  Inputs inputs(const AttentionShape& s, double largest = 2) {
    auto qkv = random(DType::bf16, qkv_shape(s), -largest, largest);
    auto dout = random(DType::bf16, {s.batch * s.seq, s.heads * s.head_dim}, -2, 2);
    auto f = cpu_forward(s, qkv);
    return {std::move(qkv), std::move(dout), std::move(f)};
  }
  Tensor backward(const AttentionShape& s, const Inputs& in, std::uint64_t schedule = 0) {
    Tensor dqkv(DType::bf16, qkv_shape(s));
    dqkv.poison();
    cuda::attention_grad_of_warpgroups(EmulatedLauncher{&counts, schedule}, s, dqkv, in.dout, in.f.out, in.f.lse, in.qkv);
    return dqkv;
  }
  void expect_right(const std::vector<AttentionShape>& shapes) {
    for (const auto& s : shapes) {
      SCOPED_TRACE(text(s, DType::bf16));
      ASSERT_TRUE(cuda::warpgroups_serve(DType::bf16, s));
      const auto in = inputs(s);
      const AttentionOracle want(s, in.qkv.values(), in.dout.values());
      const auto got = backward(s, in);
      expect_near_parts(s, got, want.dqkv, 2 * tolerance(DType::bf16), "");

      Tensor cpu(DType::bf16, qkv_shape(s)), warps(DType::bf16, qkv_shape(s));
      math.attention_grad(stream, s, cpu, in.dout, in.f.out, in.f.lse, in.qkv);
      machine.sync();
      expect_near_parts(s, got, cpu.values(), 3 * tolerance(DType::bf16), " beside the CPU's");
      cuda::attention_grad(EmulatedLauncher{&counts}, s, warps, in.dout, in.f.out, in.f.lse, in.qkv);
      expect_near_parts(s, got, warps.values(), 3 * tolerance(DType::bf16), " beside the warps'");
    }
  }
};

// Odd lengths around the edges of tiles of 64, 96 and 128; one, two and several tiles in the inner loop; heads that share keys.
TEST_F(WarpgroupAttentionGrad, EqualsTheOracleTheCpuAndTheWarpsKernelsOf64) {
  expect_right(
      {{1, 1, 1, 1, 64}, {2, 70, 3, 3, 64}, {1, 193, 4, 2, 64}, {1, 521, 2, 1, 64}, {1, 70, 2, 1, 64, false, {.scale = 0.2}}});
}
TEST_F(WarpgroupAttentionGrad, EqualsTheOracleTheCpuAndTheWarpsKernelsOf96) {
  expect_right({{1, 97, 2, 1, 96}, {1, 389, 1, 1, 96}});
}
TEST_F(WarpgroupAttentionGrad, EqualsTheOracleTheCpuAndTheWarpsKernelsOf128) {
  expect_right({{2, 129, 2, 1, 128}, {1, 521, 3, 1, 128}, {1, 64, 4, 2, 128}});
}

// Two kernels with seven products in total; a block computes only those of the tiles that it sees.
TEST_F(WarpgroupAttentionGrad, MakesTheProductsThatAreCounted) {
  const AttentionShape s{1, 512, 4, 2, 128};
  const auto in = inputs(s);
  counts = {};
  backward(s, in);
  // Per warp, in units of m64n·k16: keys with queries in tiles of 128 and 64, then queries with keys in tiles of 128 and 128.
  std::int64_t want = 0;
  for (std::int64_t tile = 0; tile < 4; ++tile) {
    const std::int64_t warps = 8, steps = (512 - tile * 128) / 64, key_tiles = tile + 1;
    want += s.heads * warps * steps * (2 * 128 / 16 + 2 * 64 / 16);
    want += s.heads * warps * key_tiles * (2 * 128 / 16 + 128 / 16);
  }
  EXPECT_EQ(counts.products_async, want);
  EXPECT_EQ(counts.matrix_products, 0);
}

TEST_F(WarpgroupAttentionGrad, BitsDependOnNothingElse) {
  for (const auto& s : {AttentionShape{1, 300, 4, 2, 64}, AttentionShape{1, 300, 2, 1, 128}}) {
    const auto in = inputs(s);
    const auto first = backward(s, in);
    for (const std::uint64_t schedule : {std::uint64_t{0}, std::uint64_t{1}, seed | 2, (seed | 2) + 1})
      EXPECT_EQ(first.bits(), backward(s, in, schedule).bits()) << text(s, DType::bf16) << ", schedule " << schedule;
  }
}

// Scores of hundreds: the exponentials of masked scores overflow. Rounded outputs times such keys differ more from the oracle
// than the kernels differ from each other, so this compares the kernels.
TEST_F(WarpgroupAttentionGrad, KeepsLargeScores) {
  for (const std::int64_t head_dim : {64, 128}) {
    const AttentionShape s{1, 300, 1, 1, head_dim};
    auto in = inputs(s, 1);
    for (std::int64_t d = 0; d < head_dim; ++d) {
      const double sign = d % 2 == 0 ? 1 : -1;
      in.qkv.set(10 * 3 * head_dim + d, 16 * sign);        // a query
      in.qkv.set((20 * 3 + 1) * head_dim + d, 32 * sign);  // a later key
      in.qkv.set((5 * 3 + 1) * head_dim + d, -16 * sign);  // an earlier key
    }
    in.f = cpu_forward(s, in.qkv);
    Tensor warps(DType::bf16, qkv_shape(s));
    cuda::attention_grad(EmulatedLauncher{&counts}, s, warps, in.dout, in.f.out, in.f.lse, in.qkv);
    expect_near_parts(s, backward(s, in), warps.values(), 3 * tolerance(DType::bf16), " beside the warps'");
  }
}

TEST_F(WarpgroupAttentionGrad, WhatItDoesNotServeIsRefused) {
  EXPECT_THROW(backward({1, 4, 1, 1, 32}, inputs({1, 4, 1, 1, 32})), std::logic_error);
  const AttentionShape s{1, 4, 1, 1, 64};
  const auto in = inputs(s);
  Tensor shifted(DType::bf16, qkv_shape(s), 1);
  EXPECT_THROW(cuda::attention_grad_of_warpgroups(EmulatedLauncher{&counts}, s, shifted, in.dout, in.f.out, in.f.lse, in.qkv),
               std::logic_error);
}

template <class Kernel, Sabotage kSabotage>
struct Sabotaged {
  void operator()(EmulatedLane& lane, const cuda::AttentionArgs<bf16>& args) const {
    SabotagedLane<kSabotage> sabotaged{lane};
    Kernel{}(sabotaged, args);
  }
};

// With one schedule: an error, "right" or "wrong".
class WarpgroupGradSabotage : public WarpgroupAttentionGrad {
 protected:
  template <template <int> class Kernel, Sabotage kSabotage>
  std::string outcome(std::uint64_t schedule) {
    using Right = Kernel<64>;
    Tensor dqkv(DType::bf16, qkv_shape(kShape));
    const auto args = cuda::attention_grad_args<bf16>(kShape, dqkv, in.dout, in.f.out, in.f.lse, in.qkv);
    emulate<cuda::AttentionInner>({.blocks = {cuda::ceil_div(kShape.seq, cuda::AttentionInner::kWarps), kShape.heads, 1},
                                   .threads = cuda::AttentionInner::kThreads},
                                  args);
    constexpr bool kKeys = std::is_same_v<Right, cuda::WarpgroupKeyGrad<64>>;
    try {
      emulate<Sabotaged<Right, kSabotage>>(
          {.blocks = {1, cuda::ceil_div(kShape.seq, 128), 1}, .threads = Right::kThreads, .shared_bytes = Right::kSharedBytes},
          args, schedule);
    } catch (const EmulationError& e) {
      return e.what();
    }
    for (std::int64_t i = 0; i < dqkv.size(); ++i) {
      if ((i % 192 >= 64) != kKeys) continue;
      if (!(std::abs(dqkv.get(i) - want.dqkv[static_cast<std::size_t>(i)]) <= 0.1)) return "wrong";
    }
    return "right";
  }
  template <template <int> class Kernel>
  void every_operation_is_needed() {
    const auto expect = [&]<Sabotage kSabotage>(const char* name, const std::string& what) {
      for (const std::uint64_t schedule : {0, 1, 2, 3})
        EXPECT_THAT((outcome<Kernel, kSabotage>(schedule)), testing::HasSubstr(what)) << name << ", schedule " << schedule;
    };
    const std::string not_shown = "which nobody has copied, waited for and shown";
    expect.template operator()<Sabotage::none>("none", "right");
    expect.template operator()<Sabotage::no_wait_for_copies>("no_wait_for_copies", not_shown);
    expect.template operator()<Sabotage::one_group_of_copies_less>("one_group_of_copies_less", not_shown);
    expect.template operator()<Sabotage::no_fence_for_memory>("no_fence_for_memory", not_shown);
    expect.template operator()<Sabotage::no_fence_of_registers>("no_fence_of_registers", "without fence_products()");
    expect.template operator()<Sabotage::no_wait_for_products>("no_wait_for_products", "products that it has not waited for");
    for (const std::uint64_t schedule : {0, 1, 2, 3}) {
      EXPECT_NE((outcome<Kernel, Sabotage::no_wait_for_the_scores>(schedule)), "right");
      EXPECT_NE((outcome<Kernel, Sabotage::no_wait_for_the_sums>(schedule)), "right");
      EXPECT_NE((outcome<Kernel, Sabotage::base_not_aligned>(schedule)), "right");
      EXPECT_NE((outcome<Kernel, Sabotage::no_commit>(schedule)), "right");
    }
    // A missing barrier only shows in a schedule in which one warpgroup runs ahead of another.
    int shown = 0;
    for (std::uint64_t schedule = 0; schedule < 4; ++schedule)
      shown += outcome<Kernel, Sabotage::no_sync>(schedule) != "right" ? 1 : 0;
    EXPECT_GT(shown, 0);
  }
  static constexpr AttentionShape kShape{1, 420, 1, 1, 64};
  const Inputs in = inputs(kShape);
  const AttentionOracle want{kShape, in.qkv.values(), in.dout.values()};
};

TEST_F(WarpgroupGradSabotage, EveryOperationOfKeysIsNeeded) { every_operation_is_needed<cuda::WarpgroupKeyGrad>(); }
TEST_F(WarpgroupGradSabotage, EveryOperationOfQueriesIsNeeded) { every_operation_is_needed<cuda::WarpgroupQueryGrad>(); }

}  // namespace
}  // namespace terrace::test
