// A run that is stopped after any step and continues, with the same or other budgets, ends with the same bits as one that never
// stopped.
#include <gtest/gtest.h>

#include <terrace/tests/train/settings.h>

namespace terrace::test {
namespace {

class ResumedTraining : public TrainTest {};

TEST_F(ResumedTraining, AfterAnyStepUnderOtherBudgetsEndsInTheSameBits) {
  constexpr std::int64_t kSteps = 20;
  const auto all = covering_settings(2);
  std::vector<std::int64_t> stops{1, 7, 19};
  if (long_form()) {
    stops.clear();
    for (std::int64_t stop = 1; stop < kSteps; ++stop) stops.push_back(stop);
  }
  for (const auto& model : {kModels[0], kModels[1], kModels[3], kModels[8]}) {
    // A constant rate does not depend on the run's last step, so --steps can stop it anywhere.
    const auto config = [&](std::size_t setting, std::int64_t steps) {
      auto s = all[setting % all.size()];
      s.model = model;
      auto c = config_of(s, corpus(), folder_ / "disk");
      c.lr_schedule = ScheduleKind::constant;
      c.min_lr = c.lr;
      c.warmup = 1;
      c.steps = steps;
      return c;
    };
    auto straight = config(0, kSteps);
    const auto reference = train_fresh(straight);
    std::size_t setting = 1;
    for (const auto stop : stops) {
      auto first = config(setting, stop), second = config(setting + 7, kSteps);
      setting += 4;
      first.out_dir = second.out_dir = folder_ / fmt::format("stopped-{}-{}", model.name(), stop);
      second.resume = cli::parse_resume("auto");
      run_train(first);
      expect_same_bits(reference, run_train(second), fmt::format("{}, stopped after step {}", model.name(), stop));
    }
  }
}

TEST_F(ResumedTraining, StoppedAfterEveryStepEndsInTheSameBits) {
  const auto& model = kModels[5];
  auto config = config_of(model, corpus());
  config.lr_schedule = ScheduleKind::constant;
  config.min_lr = config.lr;
  config.warmup = 1;
  config.steps = long_form() ? 20 : 6;
  const auto reference = train_fresh(config);
  Trained last;
  const auto all = covering_settings(2);
  for (std::int64_t stop = 1; stop <= config.steps; ++stop) {
    auto setting = all[static_cast<std::size_t>(stop)];
    setting.model = model;
    auto next = config_of(setting, corpus(), folder_ / "disk");
    next.lr_schedule = config.lr_schedule;
    next.min_lr = config.min_lr;
    next.warmup = config.warmup;
    next.steps = stop;
    next.resume = cli::parse_resume("auto");
    next.out_dir = folder_ / "stopped";
    last = run_train(next);
  }
  expect_same_bits(reference, last, model.name());
}

}  // namespace
}  // namespace terrace::test
