// The steps of a layer's call: what a plan reads of them, and what a run executes.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/model/call_steps.h>
#include <terrace/tests/support/inline_stream.h>

namespace terrace {
namespace {

class CallStepsTest : public testing::Test {
 protected:
  // A step that only writes down its name.
  CallSteps::Run note(std::string name) {
    return [this, name = std::move(name)](LayerContext&, const LayerTensors&) { ran.push_back(name); };
  }
  std::vector<std::string> run(const CallSteps& described, std::uint32_t phase, Half half = Half::both) {
    ran.clear();
    LayerContext ctx{.stream = stream,
                     .math = device->math(),
                     .shape = {1, 1},
                     .tokens = {},
                     .targets = {},
                     .loss = {},
                     .scratch = {},
                     .phase = phase,
                     .half = half};
    described.run(ctx, {.weights = {}, .gradients = {}, .x = {}, .y = {}, .saved = {}, .dy = {}, .dx = {}, .carried = {}});
    return ran;
  }

  using Names = std::vector<std::string>;
  ThreadPool pool{1};
  std::unique_ptr<Device> device = make_cpu_device(pool);
  test::InlineStream stream;
  Names ran;
  CallSteps steps;
};

TEST_F(CallStepsTest, ARoomIsAsLargeAsItsGreatestReservation) {
  const auto first = steps.room("first", DType::bf16), second = steps.room("second", DType::fp32);
  for (const std::int64_t elements : {3, 8, 5}) steps.reserve(first, elements);
  const auto work = steps.work();
  ASSERT_EQ(work.size(), 2U);
  EXPECT_EQ(work[first].name, "first");
  EXPECT_EQ(work[first].dtype, DType::bf16);
  EXPECT_EQ(work[first].shape.elements(), 8);
  EXPECT_EQ(work[second].shape.elements(), 0);
}

TEST_F(CallStepsTest, AViewHasTheFirstElementsOfItsRoomAndIsEmptyIfThePhaseDoesNotUseIt) {
  std::array<float, 8> values{};
  const std::vector<TensorView> work{{}, {reinterpret_cast<std::byte*>(values.data()), DType::fp32, {8}}};
  const LayerTensors t{
      .weights = {}, .gradients = {}, .x = {}, .y = {}, .saved = {}, .dy = {}, .dx = {}, .carried = {}, .work = work};
  const auto view = CallSteps::view(t, 1, {2, 3});
  EXPECT_EQ(view.data, work[1].data);
  EXPECT_EQ(view.elements(), 6);
  EXPECT_TRUE(CallSteps::view(t, 0, {2, 3}).empty());
}

TEST_F(CallStepsTest, AnExchangeReservesItsRoomsAndSaysWhatItUses) {
  using Of = PhaseTensor::Of;
  const auto room = steps.room("sent", DType::fp32);
  steps.exchange(Half::both,
                 {.members = mesh::kContextRanks, .from = room, .to = {3, Of::saved}, .sent = {2, 5}, .received = {4, 4}});
  steps.exchange(Half::input,
                 {.members = mesh::kContextRanks, .from = {0, Of::carried}, .to = room, .sent = {1}, .received = {9}});
  EXPECT_EQ(steps.work().at(room).shape.elements(), 9);
  const auto phases = steps.phases();
  ASSERT_EQ(phases.size(), 2U);
  EXPECT_EQ(phases[0].exchange->sent, (std::vector<std::int64_t>{2, 5}));
  EXPECT_EQ(phases[0].saved, Access::update);
  EXPECT_EQ(phases[0].carried, std::nullopt);
  EXPECT_EQ(phases[1].half, Half::input);
  EXPECT_EQ(phases[1].saved, std::nullopt);
  EXPECT_EQ(phases[1].carried, Access::read);
  for (const auto& phase : phases) EXPECT_EQ(phase.scratch_bytes, 0U);
}

TEST_F(CallStepsTest, RunsOnlyTheAskedPhaseAndHalfAndNoExchange) {
  const auto mine = steps.room("mine", DType::fp32), all = steps.room("all", DType::fp32);
  steps.compute({.half = Half::input}, note("input"));
  steps.exchange(Half::input, {mesh::kContextRanks, mine, all, {1}, {4}, comm::Operation::all_gather});
  steps.compute({.half = Half::weight}, note("weight"));
  steps.compute({.half = Half::both}, note("both"));
  EXPECT_EQ(run(steps, 0), (Names{"input"}));
  EXPECT_EQ(run(steps, 1), Names{});
  EXPECT_EQ(run(steps, 2), (Names{"weight"}));
  EXPECT_EQ(run(steps, 2, Half::input), Names{});
  EXPECT_EQ(run(steps, kAllPhases), (Names{"input", "weight", "both"}));
  EXPECT_EQ(run(steps, kAllPhases, Half::input), (Names{"input", "both"}));
  EXPECT_EQ(run(steps, kAllPhases, Half::weight), (Names{"weight", "both"}));
}

TEST_F(CallStepsTest, TheCheckRunsBeforeEachPhase) {
  steps.before(note("check"));
  steps.compute({.x = true}, note("first"));
  steps.compute({.x = true}, note("second"));
  EXPECT_EQ(run(steps, 0), (Names{"check", "first"}));
  EXPECT_EQ(run(steps, 1), (Names{"check", "second"}));
}

TEST_F(CallStepsTest, WhatIsNotDividedRunsAtOnce) {
  EXPECT_TRUE(steps.phases().empty());
  EXPECT_EQ(run(steps, kAllPhases), Names{});
  steps.compute(note("one"));
  steps.compute(note("two"), 96);
  for (const auto& phase : steps.phases()) EXPECT_TRUE(phase.undivided);
  EXPECT_EQ(steps.scratch_bytes(), 96U);
  EXPECT_TRUE(steps.work().empty());
  EXPECT_EQ(run(steps, kAllPhases), (Names{"one", "two"}));
  EXPECT_EQ(run(steps, kAllPhases, Half::weight), (Names{"one", "two"}));
}

}  // namespace
}  // namespace terrace
