#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/plan/choose.h>
#include <terrace/parallel/plan/distances.h>
#include <terrace/tests/support/one_in.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

// A fast GPU behind a slow link, so that the choice matters.
MachineProfile gpu() {
  MachineProfile p;
  p.device = "a GPU";
  p.matmul_fp32 = 1e12;
  p.device_stream = 1e12;
  p.upload = p.download = 1e10;
  p.memory_stream = 5e10;
  return p;
}

class Choosing : public testing::Test {
 protected:
  Choosing() {
    request.shape = {{4, 64}, 4};
    request.updates_before_use = true;
    request.steps = 4;
    request.order = std::nullopt;
    request.recompute = request.offload = std::nullopt;
  }
  [[nodiscard]] PlanRequest forced(Order order, std::uint32_t group, std::uint32_t recompute, std::uint32_t offload) const {
    return planning::with_choice(request, {{order, group, recompute, offload}});
  }
  void tighten() {  // twice the smallest device budget that works
    request.budget.device = 2 * plan(model, forced(Order::horizontal, 0, 0, 0), gpu()).smallest_bytes[Tier::device];
  }
  Model model = toy::make_model({.width = 128, .blocks = 10});
  PlanRequest request;
};

TEST_F(Choosing, WhatFitsIntoTheDeviceIsLeftPlain) {
  const auto p = plan(model, request, gpu());
  ASSERT_TRUE(p.fits);
  EXPECT_EQ(p.choice, planning::StepChoice{});
  EXPECT_EQ(recomputing(p.map.activations) + offloading(p.map.activations), 0U);
  EXPECT_TRUE(p.tried.empty());
}

// Holds whether the order is open or forced. At these rates, another depth would be fastest on the disk as measured.
TEST_F(Choosing, TheDepthIsTheFastestOnASlowerDisk) {
  tighten();
  request.disk_tier = true;
  request.budget.host = 8 * kMiB, request.budget.disk = kGiB;
  MachineProfile cpu;
  cpu.matmul_fp32 = 4e11, cpu.memory_stream = 1e11, cpu.memory_copy = 4e10;
  auto fast = gpu();
  fast.memory_stream = 1e11;
  const auto expect_fastest = [&](const PlanRequest& asked, MachineProfile profile, double disk) {
    SCOPED_TRACE(testing::Message() << profile.device << ", disk " << disk);
    profile.disk_read = profile.disk_write = disk;
    profile.disk_both = 1.5 * disk;
    const auto chosen = plan(model, asked, profile);
    ASSERT_TRUE(chosen.fits) << chosen.refusal.why;
    const auto seconds = [&](std::uint32_t depth) {
      return plan(model, planning::with_choice(asked, {chosen.choice, depth, chosen.map.update}),
                  planning::with_slower_disk(profile))
          .times.seconds;
    };
    std::uint32_t fastest = 1;
    for (const std::uint32_t depth : {2U, 4U, 8U})
      if (seconds(depth) < 0.995 * seconds(fastest)) fastest = depth;
    EXPECT_EQ(chosen.prefetch_depth, fastest);
  };
  for (const double disk : {12.2e9, 23.8e9}) expect_fastest(request, fast, disk);
  expect_fastest(forced(Order::horizontal, 0, 0, 0), cpu, 1.526e9);
}

TEST_F(Choosing, IsNoSlowerThanAnythingThatCanBeForced) {
  tighten();
  const auto layers = static_cast<std::uint32_t>(model.layers.size());
  for (const double link : {1e9, 1e10, 1e11})
    for (const bool disk : {link == 1e10}) {
      auto profile = gpu();
      profile.upload = profile.download = link;
      request.disk_tier = false, request.budget.host = kUnlimited;
      if (disk) request.budget.host = 8 * kMiB, request.budget.disk = kGiB, request.disk_tier = true;
      const auto chosen = plan(model, request, profile);
      ASSERT_TRUE(chosen.fits) << chosen.refusal.why;
      EXPECT_LE(chosen.tried.size(), 40U);  // limits the cost of choosing
      double slowest = 0;
      for (const auto& [order, group] : {std::pair{Order::horizontal, 0U}, {Order::group_vertical, 2U}, {Order::vertical, 0U}})
        for (const auto recompute : {0U, kAllLayers})
          for (const auto offload : {0U, kAllLayers}) {
            const auto other = plan(model, forced(order, group, recompute, offload), profile);
            if (!other.fits) continue;
            slowest = std::max(slowest, other.times.seconds);
            EXPECT_LT(chosen.times.seconds, 1.1 * other.times.seconds)  // candidates are compared over fewer steps
                << "link " << link << ", disk " << disk << ": " << to_text(chosen.choice, layers) << " beside "
                << to_text(other.choice, layers);
          }
      EXPECT_GT(slowest, 1.2 * chosen.times.seconds);
    }
}

TEST_F(Choosing, WhatIsForcedIsLeftAlone) {
  tighten();
  request.order = Order::horizontal;
  EXPECT_EQ(plan(model, request, gpu()).choice.order, Order::horizontal);
  request.order = std::nullopt;
  request.recompute = 3;
  const auto p = plan(model, request, gpu());
  EXPECT_EQ(recomputing(p.map.activations), 3U);
  EXPECT_EQ(p.tried.empty(), false);
  for (const auto& t : p.tried) EXPECT_EQ(t.choice.recompute, 3U);
  request.recompute = std::nullopt;
  request.activations.assign(model.layers.size(), {});
  request.activations[4] = {true, true};
  const auto each = plan(model, request, gpu());
  EXPECT_EQ(each.map.activations, request.activations);
  EXPECT_EQ(recomputing(each.map.activations), 1U);
}

TEST_F(Choosing, WhatFitsInNoWayIsRefusedWithWhatNeedsLeast) {
  request.budget.device = 64 * kKiB;
  const auto p = plan(model, request, gpu());
  ASSERT_FALSE(p.fits);
  EXPECT_EQ(p.refusal.tier, Tier::device);
  EXPECT_GT(p.refusal.enough_bytes, 0U);
  request.shape.micro_batches = 0;
  EXPECT_THROW(plan(model, request, gpu()), Error);
}

TEST_F(Choosing, TheSameRequestGivesTheSamePlan) {
  tighten();
  const auto a = plan(model, request, gpu()), b = plan(model, request, gpu());
  EXPECT_EQ(a.choice, b.choice);
  EXPECT_EQ(a.programs.steady, b.programs.steady);
}

void expect_same(const Plan& alone, const Plan& beside) {
  ASSERT_EQ(alone.fits, beside.fits);
  EXPECT_EQ(alone.choice, beside.choice);
  EXPECT_EQ(alone.prefetch_depth, beside.prefetch_depth);
  EXPECT_EQ(alone.gather_ahead, beside.gather_ahead);
  EXPECT_EQ(alone.map.update, beside.map.update);
  EXPECT_EQ(alone.programs.steady, beside.programs.steady);
  EXPECT_EQ(alone.times.seconds, beside.times.seconds);
  EXPECT_EQ(alone.peak_bytes, beside.peak_bytes);
  EXPECT_EQ(alone.step_traffic, beside.step_traffic);
  ASSERT_EQ(alone.tried.size(), beside.tried.size());
  for (std::size_t i = 0; i < alone.tried.size(); ++i) {
    EXPECT_EQ(alone.tried[i].choice, beside.tried[i].choice);
    EXPECT_EQ(alone.tried[i].seconds, beside.tried[i].seconds);
  }
}

// Where there is a pool, candidates are simulated in parallel; this never changes the plan, whatever choices are open.
TEST_F(Choosing, ThreadsChangeNoPlan) {
  ThreadPool pool(4);
  tighten();
  const auto tight = request;
  for (int way = 0; way < 12; ++way) {
    SCOPED_TRACE(way);
    request = tight;
    if (way % 2 == 1) request.order = Order::vertical, request.recompute = request.offload = 0;  // updates are open
    if (way % 3 == 1) request.budget.host /= 2, request.budget.disk = kUnlimited, request.disk_tier = true;
    if (way % 3 == 2) request.budget.device = kUnlimited;
    if (way >= 6) request.update = Tier::host;
    expect_same(plan(model, request, gpu()), plan(model, request, gpu(), &pool));
  }
}

// All ranks must make the same plan whatever their number of threads, or they would wait for ever: ranks of later stages and
// the other data ranks, too.
TEST_F(Choosing, ThreadsChangeNoPlanOfALaterRank) {
  ThreadPool pool(4);
  const auto layers = static_cast<std::uint32_t>(model.layers.size());
  request.mesh = {.pp = 3, .shard = 2};
  request.data.zero = 3;
  request.recompute = request.offload = 0;
  request.pipeline = pipeline::Pipeline{pipeline::write_order("1f1b", {.ranks = 3, .micro_batches = 4}), {0, 4, 8, layers}};
  for (std::uint32_t rank = 0; rank < 6; rank += 2)
    for (const bool disk : {false, true}) {
      SCOPED_TRACE(fmt::format("rank {}, disk {}", rank, disk));
      request.rank = rank;
      request.budget = {};
      request.disk_tier = disk;
      tighten();
      if (disk) request.budget.host = 8 * kMiB, request.budget.disk = kGiB;
      const auto alone = plan(model, request, gpu()), beside = plan(model, request, gpu(), &pool);
      ASSERT_TRUE(alone.fits) << alone.refusal.why;
      expect_same(alone, beside);
      request.rank = rank + 1;
      expect_same(for_rank(alone, model, request, gpu()), for_rank(beside, model, request, gpu()));
    }
}

// All ranks follow the first rank's choice, in the same order, or their collectives would not match.
TEST_F(Choosing, EveryRankDoesWhatTheFirstChose) {
  request.mesh.shard = 2;
  request.data.zero = 3;
  tighten();
  const auto first = plan(model, request, gpu());
  ASSERT_TRUE(first.fits);
  EXPECT_NE(first.choice, planning::StepChoice{});
  request.rank = 1;
  const auto second = for_rank(first, model, request, gpu());
  const auto computed = [](const Plan& p) {
    auto actions = p.programs.steady.actions;
    std::erase_if(actions, [](const Action& a) { return a.op == Op::prefetch; });  // each rank prefetches its own chunks
    return actions;
  };
  EXPECT_EQ(computed(first), computed(second));
  EXPECT_EQ(first.map.activations, second.map.activations);
}

// Without clipping, a host that is slower than the backward also updates in the next step's forward: about as many layers as
// are fastest, of all numbers.
TEST_F(Choosing, UpdatesThatTheBackwardDoesNotHideWaitForTheNextForward) {
  model = toy::make_model({.width = 512, .blocks = 8});
  request.updates_before_use = false;
  request.order = Order::horizontal;
  request.recompute = request.offload = 0;
  request.update = Tier::host;
  request.shape = {{8, 256}, 1};
  request.prefetch_depth = 2;
  auto slow_host = gpu();
  slow_host.memory_stream = 2e9;
  request.budget.device = plan(model, request, slow_host).smallest_bytes[Tier::device] * 2;
  request.deferred = std::nullopt;
  const auto chosen = plan(model, request, slow_host);
  ASSERT_TRUE(chosen.fits) << chosen.refusal.why;
  EXPECT_GT(chosen.choice.deferred, 0U);
  EXPECT_LT(chosen.choice.deferred, model.layers.size());
  std::vector<double> seconds;
  for (std::uint32_t n = 0; n <= model.layers.size(); ++n) {
    request.deferred = n;
    seconds.push_back(plan(model, request, slow_host).times.seconds);
  }
  EXPECT_LT(chosen.times.seconds, 0.95 * std::min(seconds.front(), seconds.back()));
  EXPECT_LT(chosen.times.seconds, 1.02 * std::ranges::min(seconds));
}

// On random machines, the choice is nearly as fast as the best of all numbers of layers that recompute, offload and update
// early, with updates on either tier.
TEST_F(Choosing, AnExhaustiveSearchFindsLittleThatIsFaster) {
  constexpr std::uint64_t seed = 11;
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  const auto between = [&](double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>(0, 1)(random));
  };
  model = toy::make_model({.width = 128, .blocks = test::long_form() ? 4 : 3});
  const auto layers = static_cast<std::uint32_t>(model.layers.size());
  request.shape = {{4, 64}, 1};
  request.order = Order::horizontal;
  request.early = std::nullopt;
  double worst = 0, all = 0;
  const int machines = test::long_form() ? 12 : 3;
  for (int machine = 0; machine < machines; ++machine) {
    auto profile = gpu();
    profile.matmul_fp32 = between(2e11, 2e12);
    profile.upload = profile.download = between(3e9, 1e11);
    profile.memory_stream = between(1e10, 1e11);
    request.budget = {};
    request.budget.device = static_cast<std::uint64_t>(
        between(1.2, 3) *
        static_cast<double>(plan(model, forced(Order::horizontal, 0, 0, 0), profile).smallest_bytes[Tier::device]));
    const auto chosen = plan(model, request, profile);
    ASSERT_TRUE(chosen.fits) << chosen.refusal.why;
    double best = chosen.times.seconds;
    std::string how = "the choice";
    for (const auto tier : {Tier::host, Tier::device})
      for (const std::uint32_t early : {0U, layers * 2 / 3, layers})
        for (std::uint32_t recompute = 0; recompute < layers; ++recompute)
          for (std::uint32_t offload = 0; offload < layers; ++offload) {
            const auto p = plan(model,
                                planning::with_choice(
                                    request, {{.recompute = recompute, .offload = offload, .early = early}, kAutoDepth, tier}),
                                profile);
            if (!p.fits || p.times.seconds >= best) continue;
            best = p.times.seconds;
            how = fmt::format("{} on {}", to_text(p.choice, layers), in_words(p.map.update));
          }
    EXPECT_LE(chosen.times.seconds, 1.1 * best) << "machine " << machine << ": " << to_text(chosen.choice, layers) << " on "
                                                << in_words(chosen.map.update) << " beside " << how;
    worst = std::max(worst, chosen.times.seconds / best);
    all += chosen.times.seconds / best / machines;
  }
  RecordProperty("worst", fmt::format("{:.3f}", worst));
  fmt::print("the choice takes {:.3f} of the best on average, {:.3f} at worst\n", all, worst);
}

// Layers that save much memory for little work are recomputed; among equal layers, the later ones keep what they saved.
TEST_F(Choosing, EarlierLayersGiveWayFirst) {
  const auto each = choose_activations(model, request.shape.batch, 4, 2);
  for (std::uint32_t l = 0; l < each.size(); ++l) {
    EXPECT_EQ(each[l].recompute, l >= 1 && l <= 4) << l;  // the embedding saves nothing
    EXPECT_EQ(each[l].offload, l < 2) << l;
  }
}

TEST_F(Choosing, TheSlowestLinkIsTheOneThatBinds) {
  tighten();
  request.update = Tier::host;
  const auto link = [&](auto slow) {
    auto profile = gpu();
    profile.upload = profile.download = profile.memory_stream = 1e12;
    profile.disk_read = profile.disk_write = profile.disk_both = 1e12;
    slow(profile);
    return plan(model, forced(Order::horizontal, 0, 0, 0), profile).link;
  };
  EXPECT_EQ(link([](MachineProfile& p) { p.upload = p.download = 1e9; }), "PCIe");
  EXPECT_EQ(link([](MachineProfile& p) { p.memory_stream = 1e9; }), "host memory");
  request.budget.host = 8 * kMiB, request.budget.disk = kGiB, request.disk_tier = true;
  EXPECT_EQ(link([](MachineProfile& p) { p.disk_read = p.disk_write = 1e9, p.disk_both = 2e9; }), "disk");
}

}  // namespace
}  // namespace terrace
