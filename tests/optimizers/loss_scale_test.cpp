#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/core/base/error.h>
#include <terrace/optimizers/loss_scale.h>

namespace terrace::test {
namespace {

TEST(LossScale, IsOffOrFixedOrDynamic) {
  EXPECT_EQ(LossScale::parse("off").value(), 1);
  EXPECT_EQ(LossScale::parse("1024").value(), 1024);
  EXPECT_EQ(LossScale::parse("dynamic").value(), LossScale::kFirst);
  for (const auto* fixed : {"off", "1024"}) {
    auto scale = LossScale::parse(fixed);
    const double value = scale.value();
    EXPECT_FALSE(scale.dynamic() || scale.can_back_off());
    scale.overflowed();
    for (std::uint64_t i = 0; i <= LossScale::kGrowthInterval; ++i) scale.succeeded();
    scale.restore({.value = 2, .good_steps = 1});
    EXPECT_EQ(scale.value(), value) << fixed;
  }
}

TEST(LossScale, WhatIsNoScaleIsRefused) {
  for (const auto* text : {"", "on", "1000", "-2", "0", "0.5", "inf", "nan", "1024x", "33554432", "3"}) try {
      (void)LossScale::parse(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::refused);
      EXPECT_THAT(e.what(), testing::HasSubstr("power of two"));
    }
}

TEST(LossScale, HalvesAtOverflowAndDoublesAfterEnoughGoodStepsInARow) {
  auto scale = LossScale::parse("dynamic");
  scale.overflowed();
  EXPECT_EQ(scale.value(), LossScale::kFirst / 2);
  for (std::uint64_t i = 1; i < LossScale::kGrowthInterval; ++i) scale.succeeded();
  EXPECT_EQ(scale.value(), LossScale::kFirst / 2);
  scale.overflowed();  // one step too early: counting starts again
  for (std::uint64_t i = 1; i < LossScale::kGrowthInterval; ++i) scale.succeeded();
  EXPECT_EQ(scale.value(), LossScale::kFirst / 4);
  scale.succeeded();
  EXPECT_EQ(scale.value(), LossScale::kFirst / 2);
}

TEST(LossScale, StaysWithinItsBounds) {
  auto scale = LossScale::parse("dynamic");
  for (int i = 0; i < 100; ++i) scale.overflowed();
  EXPECT_EQ(scale.value(), LossScale::kSmallest);
  EXPECT_FALSE(scale.can_back_off());
  for (std::uint64_t i = 0; i < 100 * LossScale::kGrowthInterval; ++i) scale.succeeded();
  EXPECT_EQ(scale.value(), LossScale::kGreatest);
  EXPECT_TRUE(scale.can_back_off());
}

TEST(LossScale, GoesOnWhereACommitLeftIt) {
  auto one = LossScale::parse("dynamic"), other = LossScale::parse("dynamic");
  one.overflowed();
  for (std::uint64_t i = 0; i < 1500; ++i) one.succeeded();
  other.restore(one.state());
  for (std::uint64_t i = 0; i < 600; ++i) {
    one.succeeded();
    other.succeeded();
    EXPECT_EQ(one.state(), other.state()) << i;
  }
  EXPECT_EQ(other.value(), LossScale::kFirst);
  for (const double bad : {0.0, -1.0, 3.0, 1e30, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(other.restore({.value = bad}), Error) << bad;
}

}  // namespace
}  // namespace terrace::test
