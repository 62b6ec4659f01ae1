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
      c.train.lr_schedule = ScheduleKind::constant;
      c.train.min_lr = c.train.lr;
      c.train.warmup = 1;
      c.train.steps = steps;
      return c;
    };
    auto straight = config(0, kSteps);
    const auto reference = train_fresh(straight);
    std::size_t setting = 1;
    for (const auto stop : stops) {
      auto first = config(setting, stop), second = config(setting + 7, kSteps);
      setting += 4;
      first.run.out_dir = second.run.out_dir = folder_ / fmt::format("stopped-{}-{}", model.name(), stop);
      second.run.resume = cli::parse_resume("auto");
      run_train(first);
      expect_same_bits(reference, run_train(second), fmt::format("{}, stopped after step {}", model.name(), stop));
    }
  }
}

TEST_F(ResumedTraining, StoppedAfterEveryStepEndsInTheSameBits) {
  const auto& model = kModels[5];
  auto config = config_of(model, corpus());
  config.train.lr_schedule = ScheduleKind::constant;
  config.train.min_lr = config.train.lr;
  config.train.warmup = 1;
  config.train.steps = long_form() ? 20 : 6;
  const auto reference = train_fresh(config);
  Trained last;
  const auto all = covering_settings(2);
  for (std::int64_t stop = 1; stop <= config.train.steps; ++stop) {
    auto setting = all[static_cast<std::size_t>(stop)];
    setting.model = model;
    auto next = config_of(setting, corpus(), folder_ / "disk");
    next.train.lr_schedule = config.train.lr_schedule;
    next.train.min_lr = config.train.min_lr;
    next.train.warmup = config.train.warmup;
    next.train.steps = stop;
    next.run.resume = cli::parse_resume("auto");
    next.run.out_dir = folder_ / "stopped";
    last = run_train(next);
  }
  expect_same_bits(reference, last, model.name());
}

}  // namespace
}  // namespace terrace::test
