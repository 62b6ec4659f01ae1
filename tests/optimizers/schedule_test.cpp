// Tables of learning rates, and the clip factor.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/core/base/error.h>
#include <terrace/optimizers/schedule.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

struct Row {
  std::uint64_t step;
  double rate;
};
void expect_rates(const Schedule& schedule, const std::vector<Row>& rows) {
  for (const auto& row : rows) EXPECT_NEAR(schedule.at(row.step), row.rate, 1e-15) << "step " << row.step;
}
Schedule schedule(ScheduleKind kind) {
  return {.kind = kind, .peak = 1.0, .minimum = 0.1, .warmup_steps = 10, .total_steps = 110, .wsd_decay_fraction = 0.2};
}

TEST(Schedule, WarmsUpInALineToThePeak) {
  for (const auto kind : {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    expect_rates(schedule(kind), {{1, 0.1}, {5, 0.5}, {9, 0.9}, {10, 1.0}});
    EXPECT_EQ(schedule(kind).at(10), 1.0);
  }
}
TEST(Schedule, ConstantKeepsThePeak) { expect_rates(schedule(ScheduleKind::constant), {{11, 1}, {110, 1}, {100000, 1}}); }
TEST(Schedule, LinearFallsInALine) {
  expect_rates(schedule(ScheduleKind::linear), {{35, 0.775}, {60, 0.55}, {109, 0.109}, {110, 0.1}, {111, 0.1}, {9999, 0.1}});
}
TEST(Schedule, CosineFallsInHalfAWave) {
  const double root_half = std::sqrt(0.5);
  expect_rates(schedule(ScheduleKind::cosine),
               {{35, 0.1 + 0.45 * (1 + root_half)}, {60, 0.55}, {85, 0.1 + 0.45 * (1 - root_half)}, {110, 0.1}, {1000, 0.1}});
}
TEST(Schedule, WsdIsStableAndThenFallsInALine) {
  // 20 % of 110 steps are 22: from step 88 to step 110.
  expect_rates(schedule(ScheduleKind::wsd), {{11, 1}, {88, 1}, {99, 0.55}, {110, 0.1}, {111, 0.1}});
}
TEST(Schedule, WsdDecayStartsAfterTheWarmUp) {
  auto s = schedule(ScheduleKind::wsd);
  s.wsd_decay_fraction = 1;
  expect_rates(s, {{10, 1}, {60, 0.55}, {110, 0.1}});
  s.wsd_decay_fraction = 0;
  expect_rates(s, {{109, 1}, {110, 0.1}});
}
TEST(Schedule, WithoutWarmUpStartsBelowThePeak) {
  const Schedule s{.kind = ScheduleKind::linear, .peak = 1, .minimum = 0, .warmup_steps = 0, .total_steps = 4};
  expect_rates(s, {{1, 0.75}, {2, 0.5}, {3, 0.25}, {4, 0}});
}
TEST(Schedule, OneStepThatWarmsUpReachesThePeak) {
  EXPECT_EQ((Schedule{.kind = ScheduleKind::cosine, .warmup_steps = 1, .total_steps = 1}.at(1)), 3e-4);
}
TEST(Schedule, NeverLeavesItsRange) {
  for (const auto kind : {ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::wsd}) {
    double last = 1;
    for (std::uint64_t step = 10; step < 130; ++step) {
      const double rate = schedule(kind).at(step);
      EXPECT_LE(rate, last) << "step " << step;
      EXPECT_GE(rate, 0.1) << "step " << step;
      last = rate;
    }
  }
}

TEST(Schedule, ParsesItsNames) {
  EXPECT_EQ(parse_schedule("constant"), ScheduleKind::constant);
  EXPECT_EQ(parse_schedule("linear"), ScheduleKind::linear);
  EXPECT_EQ(parse_schedule("cosine"), ScheduleKind::cosine);
  EXPECT_EQ(parse_schedule("wsd"), ScheduleKind::wsd);
}

template <class F>
void expect_refused(F&& f, const std::string& words) {
  EXPECT_THAT(test::refusal_of(f), testing::HasSubstr(words));
}
TEST(Schedule, RefusesWhatItDoesNotKnow) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refused([] { parse_schedule("Cosine"); }, "accepted are constant, linear, cosine and wsd");
  expect_refused([] { (void)Schedule{}.at(0); }, "count from 1");
  expect_refused([=] { (void)Schedule{.peak = nan}.at(1); }, "peak");
  expect_refused([] { (void)Schedule{.peak = -1}.at(1); }, "peak");
  expect_refused([] { (void)Schedule{.peak = 1e-5}.at(1); }, "minimum");
  expect_refused([=] { (void)Schedule{.minimum = nan}.at(1); }, "minimum");
  expect_refused([] { (void)Schedule{.total_steps = 0}.at(1); }, "total");
  expect_refused([] { (void)Schedule{.warmup_steps = 6, .total_steps = 5}.at(1); }, "6 warm-up steps");
  expect_refused([] { (void)Schedule{.kind = ScheduleKind::wsd, .wsd_decay_fraction = 1.5}.at(1); }, "decay fraction");
}

TEST(ClipFactor, ShrinksOnlyWhatIsTooLong) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_EQ(clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_LT(clip_factor(1.0, 1.0), 1.0);  // as in PyTorch: the 1e-6 also matters at the limit
  EXPECT_EQ(clip_factor(1e30, 0.0), 1.0);
  EXPECT_EQ(clip_factor(std::numeric_limits<double>::infinity(), 1.0), 0.0);
  EXPECT_TRUE(std::isnan(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1.0)));
  expect_refused([] { clip_factor(1, -1); }, "finite and not negative");
  expect_refused([] { clip_factor(1, std::numeric_limits<double>::quiet_NaN()); }, "finite and not negative");
}

}  // namespace
}  // namespace terrace
