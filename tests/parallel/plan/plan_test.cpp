#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <terrace/core/base/error.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

Plan plan_of(const toy::RunOptions& o) {
  const auto model = toy::make_model(o.sizes);
  return plan(model, toy::request_of(o), o.profile);
}

TEST(Plan, EverythingInTheDeviceMovesNothing) {
  const auto p = plan_of({});
  ASSERT_TRUE(p.fits) << p.refusal.why;
  EXPECT_EQ(p.map.update, Tier::device);
  EXPECT_EQ(p.steady_traffic, memory::Traffic{});
  EXPECT_EQ(p.binding, "compute");
  EXPECT_NEAR(p.times.seconds, p.floor_s, 1e-9 * p.floor_s);
}

// A layer that is updated behind its backward frees its gradient: with recipe split24-8bit 5 bytes a parameter remain, plus
// scales and the gradients of one layer. Updates that wait for the norm of all gradients keep all gradients.
TEST(Plan, GradientsAreGivenUpWhenTheyAreApplied) {
  toy::RunOptions o;
  o.sizes = {.width = 64, .vocab = 64, .blocks = 24, .dtype = DType::bf16};
  o.recipe = "split24-8bit";
  o.shape = {{1, 8}, 1};  // horizontal accumulation ends with all gradients at once
  std::uint64_t peaks[2], gradients = 0;
  for (const bool before_use : {false, true}) {
    o.before_use = before_use;
    const auto p = plan_of(o);
    ASSERT_TRUE(p.fits) << p.refusal.why;
    peaks[before_use ? 1 : 0] = p.peak_bytes[Tier::device];
    gradients = 2 * p.parameters;
    EXPECT_GE(p.state_bytes, 5 * p.parameters);
  }
  EXPECT_GT(peaks[1], peaks[0] + gradients * 9 / 10);
}

// Even if the disk has been idle for long.
TEST(Plan, ACommitTakesAtLeastTheTimeOfItsWrites) {
  const auto p = plan_of({});
  ASSERT_GT(p.commit_traffic.write, 0U);
  EXPECT_GE(p.commit_seconds, static_cast<double>(p.commit_traffic.write) / toy::RunOptions{}.profile.disk_write);
}

// An evaluation or a commit applies the pending update, so the step behind it has none and takes less time.
TEST(Plan, StepsBehindAnEvaluationAreCountedOnce) {
  toy::RunOptions o;
  const auto model = toy::make_model(o.sizes);
  auto request = toy::request_of(o);
  request.steps = 12;
  const auto plain = plan(model, request, o.profile);
  request.evaluate_batches = 1;
  for (const std::uint64_t every : {2, 3, 5}) {
    request.evaluate_every = every;
    const auto p = plan(model, request, o.profile);
    EXPECT_LE(p.times.seconds, plain.times.seconds * (1 + 1e-9)) << "every " << every;
    EXPECT_GT(p.times.seconds, plain.times.compute_seconds / 2) << "every " << every;
  }
}

TEST(Plan, TheSmallestDeviceBudgetItNamesIsLegal) {
  toy::RunOptions o;
  const auto wide = plan_of(o);
  o.budget.device = wide.smallest_bytes[Tier::device];
  const auto p = plan_of(o);
  EXPECT_TRUE(p.fits) << p.refusal.why;
  EXPECT_LE(p.peak_bytes[Tier::device], o.budget.device);
}

TEST(Plan, ARefusalNamesTierBytesAndASettingThatFits) {
  toy::RunOptions o;
  o.budget.device = 64 * kKiB;
  const auto p = plan_of(o);
  ASSERT_FALSE(p.fits);
  EXPECT_EQ(p.refusal.tier, Tier::device);
  EXPECT_GT(p.refusal.missing_bytes, 0U);
  EXPECT_NE(p.refusal.why.find("largest action"), std::string::npos) << p.refusal.why;
  o.budget.device = p.refusal.enough_bytes;
  EXPECT_TRUE(plan_of(o).fits) << p.refusal.enough_bytes;
}

TEST(Plan, AHostThatIsTooSmallIsRefusedWithTheHostItNeeds) {
  toy::RunOptions o;
  o.budget = {512 * kKiB, 64 * kKiB, 0};
  const auto p = plan_of(o);
  ASSERT_FALSE(p.fits);
  EXPECT_EQ(p.refusal.tier, Tier::host);
  o.budget.host = p.refusal.enough_bytes;
  EXPECT_TRUE(plan_of(o).fits) << p.refusal.enough_bytes;
}

TEST(Plan, ARefusalOfTwoTiersAtOnceNamesAPairThatFits) {
  toy::RunOptions o;
  o.budget = {64 * kKiB, 64 * kKiB, 0};
  const auto p = plan_of(o);
  ASSERT_FALSE(p.fits);
  ASSERT_GT(p.refusal.enough_bytes, 0U);
  ASSERT_GT(p.refusal.other_bytes, 0U);
  ASSERT_NE(p.refusal.tier, p.refusal.other);
  for (const auto& [tier, bytes] :
       {std::pair{p.refusal.tier, p.refusal.enough_bytes}, std::pair{p.refusal.other, p.refusal.other_bytes}})
    (tier == Tier::device ? o.budget.device : o.budget.host) = bytes;
  EXPECT_TRUE(plan_of(o).fits) << p.refusal.enough_bytes << ", " << p.refusal.other_bytes;
  auto alone = o;
  (p.refusal.tier == Tier::device ? alone.budget.host : alone.budget.device) = 64 * kKiB;
  EXPECT_FALSE(plan_of(alone).fits) << "one would have been enough";
}

TEST(Plan, UpdatesRunWhereTheyAreToldTo) {
  toy::RunOptions o;
  for (const auto tier : {Tier::device, Tier::host}) {
    o.update = tier;
    EXPECT_EQ(plan_of(o).map.update, tier);
  }
  EXPECT_THROW(o.update = Tier::disk, Error);
  for (const double share : {-0.1, 1.1, std::nan("")}) EXPECT_THROW(UpdatePlace{share}, Error);
}

TEST(Plan, AShareOfTheUpdatesIsDealtOutEvenly) {
  for (const double share : {0.25, 0.5, 0.7}) {
    toy::RunOptions o;
    o.sizes.blocks = 8;
    o.update = UpdatePlace(share);
    const auto model = toy::make_model(o.sizes);
    const auto p = plan_of(o);
    const StepMap map(model, p.map);
    double updates = 0, on_device = 0;
    for (const auto& a : p.programs.steady.actions) {
      if (a.op != Op::update) continue;
      ++updates;
      on_device += map.places().tier_of(a) == Tier::device ? 1 : 0;
      EXPECT_LE(std::abs(on_device - updates * share), 1) << "share " << share << ", after " << updates;
    }
    EXPECT_GT(updates, 16);
  }
}

// In a step that updates in the backward, the first layer's update comes last, so it may be shared although the others are not.
TEST(Plan, TheFirstLayerHasAShareOfItsOwn) {
  for (const auto& [all, first] : {std::pair{0.0, 0.5}, {0.0, 1.0}, {0.25, 0.75}, {1.0, 0.0}}) {
    toy::RunOptions o;
    o.sizes.blocks = 8;
    o.chunk_elements = 256;
    o.update = UpdatePlace(all, first);
    const auto model = toy::make_model(o.sizes);
    const auto p = plan_of(o);
    const StepMap map(model, p.map);
    std::array<double, 2> updates{}, on_device{};
    for (const auto& a : p.programs.steady.actions) {
      if (a.op != Op::update) continue;
      const std::size_t which = a.layer == 0 ? 0 : 1;
      ++updates.at(which);
      on_device.at(which) += map.places().tier_of(a) == Tier::device ? 1 : 0;
    }
    EXPECT_GT(updates[0], 3);
    EXPECT_NEAR(on_device[0], first * updates[0], 1);
    EXPECT_NEAR(on_device[1], all * updates[1], 1);
  }
}

TEST(Plan, APlaceOfUpdatesIsReadAsItIsWritten) {
  for (const auto* const text : {"host", "device", "0.25", "0,0.5", "0.25,1", "1,0"})
    EXPECT_EQ(to_text(parse_update_place(text)), text);
  EXPECT_EQ(parse_update_place("0.5,0.5"), UpdatePlace(0.5));
  for (const auto* const text : {"", "disk", "auto", "0.5,", ",0.5", "0.5,0.5,0.5", "1.5", "0,-1", "0,nan", "0.5x"})
    EXPECT_THROW(parse_update_place(text), Error) << text;
}

// Where the device and the host are about as fast, each takes half of the updates and neither waits for the other.
TEST(Plan, UpdatesAreSharedWhereThatIsFaster) {
  toy::RunOptions o;
  o.before_use = false;
  o.sizes.blocks = 8;
  o.profile.device = "a GPU";
  o.profile.upload = o.profile.download = 1e8;
  o.profile.memory_stream = 2e8;
  const auto whole = plan_of(o);
  o.budget.device = whole.smallest_bytes[Tier::device] + whole.state_bytes / 2;
  const auto shared = plan_of(o);
  EXPECT_GT(shared.map.update.device_share(), 0);
  EXPECT_LT(shared.map.update.device_share(), 1);
  for (const auto tier : {Tier::host, Tier::device}) {
    o.update = tier;
    EXPECT_LT(shared.times.seconds, 0.99 * plan_of(o).times.seconds) << name_of(tier);
  }
}

// If the device has no processor of its own, copying states to it gains nothing.
TEST(Plan, UpdatesOfAnOffloadedModelRunOnTheFasterProcessor) {
  toy::RunOptions o;
  o.budget.device = plan_of(o).smallest_bytes[Tier::device] + kMiB;
  o.profile.memory_stream = 1e7;
  o.profile.upload = o.profile.download = 1e12;
  EXPECT_EQ(plan_of(o).map.update, Tier::host);
  o.profile.device = "a GPU";
  EXPECT_EQ(plan_of(o).map.update, Tier::device);
  std::swap(o.profile.memory_stream, o.profile.device_stream);
  EXPECT_EQ(plan_of(o).map.update, Tier::host);
}

TEST(Plan, HostUpdatesRunBesideADeviceThatComputesForItself) {
  toy::RunOptions o;
  o.budget.device = plan_of(o).smallest_bytes[Tier::device];
  o.before_use = false;
  o.update = Tier::host;
  o.profile.memory_stream = 1e9;  // as slow as the backward
  const auto together = plan_of(o);
  o.profile.device = "a GPU";
  o.profile.device_stream = o.profile.memory_stream;
  o.profile.upload = o.profile.download = o.profile.memory_copy;
  const auto apart = plan_of(o);
  const double update_s = apart.times.busy_s[index(Lane::update)];
  EXPECT_GT(update_s, 0.2 * apart.times.compute_seconds);
  EXPECT_DOUBLE_EQ(together.times.busy_s[index(Lane::update)], 0);
  EXPECT_NEAR(together.times.compute_seconds, apart.times.compute_seconds + update_s, 0.01 * together.times.compute_seconds);
  EXPECT_LT(apart.times.seconds, together.times.seconds - 0.5 * update_s);
}

TEST(Plan, ADiskThatIsTooSmallIsRefused) {
  toy::RunOptions o;
  o.budget = {2 * kMiB, 2 * kMiB, 256 * kKiB};
  o.disk_tier = true;
  const auto p = plan_of(o);
  ASSERT_FALSE(p.fits);
  EXPECT_EQ(p.refusal.tier, Tier::disk);
  o.budget.disk = p.refusal.enough_bytes;
  EXPECT_TRUE(plan_of(o).fits) << p.refusal.enough_bytes;
}

TEST(Plan, PeaksNeverExceedBudgets) {
  for (const std::uint64_t device : {1536 * kKiB, 2 * kMiB, 4 * kMiB})
    for (const std::uint64_t host : {768 * kKiB, 2 * kMiB, 8 * kMiB}) {
      toy::RunOptions o;
      o.budget = {device, host, 64 * kMiB};
      o.disk_tier = true;
      const auto p = plan_of(o);
      if (!p.fits) continue;
      EXPECT_LE(p.peak_bytes[Tier::device], device);
      EXPECT_LE(p.peak_bytes[Tier::host], host);
      EXPECT_LE(p.peak_bytes[Tier::disk], 64 * kMiB);
      EXPECT_LE(p.capacity.device, device);
      EXPECT_LE(p.capacity.host, host);
    }
}

TEST(Plan, VerticalMovesWeightsLessOftenThanHorizontal) {
  toy::RunOptions o;
  o.sizes.blocks = 12;
  o.shape.micro_batches = 4;
  o.budget = {plan_of(o).smallest_bytes[Tier::device], kUnlimited, 0};
  const auto h = plan_of(o);
  o.order = Order::vertical;
  const auto v = plan_of(o);
  ASSERT_TRUE(h.fits && v.fits) << h.refusal.why << v.refusal.why;
  EXPECT_LT(v.steady_traffic.upload, h.steady_traffic.upload);
}

Plan plan_with(const std::string& optimizer, const toy::RunOptions& o) {
  const auto model = toy::make_model(o.sizes);
  const auto made = make_optimizer(optimizer, {});
  auto request = toy::request_of(o);
  request.states = made->states();
  request.layer_unit = made->layer_unit();
  return plan(model, request, o.profile);
}

TEST(Plan, AnOptimizerThatSeesWholeLayersHasOneUpdateForEach) {
  toy::RunOptions o;
  for (const bool before_use : {true, false}) {
    o.before_use = before_use;
    for (const auto* name : {"lamb", "adafactor", "muon"}) {
      const auto p = plan_with(name, o);
      ASSERT_TRUE(p.fits) << name << ": " << p.refusal.why;
      const auto model = toy::make_model(o.sizes);
      const StepMap map(model, p.map);
      std::uint64_t updates = 0;
      for (const auto& a : p.programs.steady.actions) {
        if (a.op != Op::update) continue;
        ++updates;
        std::uint64_t bytes = 0;
        for (const auto& use : map.uses(a)) bytes += map.chunks()[use.chunk].bytes;
        const auto weights = map.layout().chunks_of(a.layer) * map.layout().chunk_elements() * sizeof(float);
        EXPECT_GE(bytes, 3 * weights) << "weights, gradients and directions of layer " << a.layer;
      }
      EXPECT_EQ(updates, map.layers()) << name;
    }
  }
  EXPECT_LT(plan_with("adafactor", o).state_bytes, plan_with("lion", o).state_bytes) << "its second moment is factored";
  EXPECT_EQ(plan_with("lamb", o).state_bytes, plan_with("adamw", o).state_bytes);
}

// Each update is first prepared and exchanged; layers with nothing to exchange (Muon's tables) have no exchange.
TEST(Plan, WhatSeesWholeLayersIsUpdatedInHalvesWhereEachRankHasAPart) {
  toy::RunOptions o;
  o.data.ranks = 2;
  const auto count = [](const Plan& p, Op op) {
    return std::ranges::count_if(p.programs.steady.actions, [&](const Action& a) { return a.op == op; });
  };
  for (const auto* name : {"lamb", "adafactor", "muon"})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
      o.data.zero = zero;
      const auto p = plan_with(name, o);
      ASSERT_TRUE(p.fits) << name << ", ZeRO-" << zero << ": " << p.refusal.why;
      const auto layers = static_cast<std::ptrdiff_t>(toy::make_model(o.sizes).layers.size());
      EXPECT_EQ(count(p, Op::update), layers);
      EXPECT_EQ(count(p, Op::prepare), zero == 0 ? 0 : layers);
      EXPECT_EQ(count(p, Op::exchange), zero == 0 ? 0 : name == std::string("muon") ? layers - 2 : layers);
    }
  EXPECT_EQ(count(plan_with("adamw", o), Op::prepare), 0);
}

// A GPU's products have other bits than the host's, so the place of the updates must not depend on the budget: Muon stays on
// the host unless asked.
TEST(Plan, WhatMultipliesMatricesIsUpdatedByTheHostOfAGpuUnlessAsked) {
  toy::RunOptions o;
  o.profile.device = "a GPU";
  for (const auto* const name : {"adamw", "lamb", "adafactor"}) EXPECT_EQ(plan_with(name, o).map.update, Tier::device) << name;
  EXPECT_EQ(plan_with("muon", o).map.update, Tier::host);
  o.update = Tier::device;
  EXPECT_EQ(plan_with("muon", o).map.update, Tier::device);
}

TEST(Plan, NonsenseIsAUsageError) {
  toy::RunOptions o;
  o.shape.micro_batches = 0;
  EXPECT_THROW(plan_of(o), Error);
}

}  // namespace
}  // namespace terrace
