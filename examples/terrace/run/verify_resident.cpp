#include <terrace/examples/terrace/run/verify_resident.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <utility>

#include <terrace/core/base/refused.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/cli/refusal.h>
#include <terrace/examples/terrace/metrics/metrics.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/run/trainer_settings.h>
#include <terrace/parallel/run/engine.h>

namespace terrace::cli {
namespace {

constexpr std::uint64_t kRepeatedSteps = 5;

void demand_same_bits(const RunDir& dir, const RunConfig& config) {
  if (!has_other_bits(dir, config)) return;
  throw base::Refused(
      fmt::format("--verify-resident: the run in {} was computed with {}, and this processor would compute its first "
                  "steps with other bits\n  repeat the run in another --out-dir, or compare it where it was computed",
                  dir.path.string(), dir.computed_with));
}

Plan resident_plan(const RunConfig& config, const AgreedPlan& agreed) {
  auto request = plan_request(config);
  request.budget = {};
  request.disk_tier = false;
  auto resident = plan(agreed.model(), request, agreed.profile());
  if (!resident.fits) throw refusal_error(config, resident);
  return resident;
}

// The line of each of the run's first steps, by its step, because lines may be missing.
std::map<std::uint64_t, StepMetrics> lines_of_run(const RunDir& dir) {
  std::map<std::uint64_t, StepMetrics> lines;
  each_step(dir.path / kMetricsFile, [&](const StepMetrics& m) {
    if (m.step <= kRepeatedSteps) lines[m.step] = m;
    return m.step < kRepeatedSteps;
  });
  return lines;
}

struct Compared {
  std::uint64_t same = 0, steps = 0;
};

void demand_all_same(const Compared& compared, const RunDir& dir) {
  if (compared.steps == 0)
    throw Error(
        fmt::format("--verify-resident: {} has none of the first {} steps, so nothing was compared\n  repeat the run "
                    "in another --out-dir",
                    (dir.path / kMetricsFile).string(), kRepeatedSteps));
  if (compared.same != compared.steps)
    throw Error(
        fmt::format("{} of {} losses differ between training with and without offloading\n  please report this with the "
                    "command line and {}",
                    compared.steps - compared.same, compared.steps, (dir.path / kConfigFile).string()));
}

}  // namespace

void verify_resident(const RunConfig& config, const AgreedPlan& agreed, RunData& data, Device& device,
                     const Optimizer& optimizer, const RunDir& dir, Screen& screen) {
  demand_same_bits(dir, config);
  const auto resident = resident_plan(config, agreed);
  Engine engine(agreed.model(), resident,
                {.device = &device,
                 .store = {.paths = {dir.path}, .name = "resident", .durable = false, .temporary = true, .io = dir.store.io},
                 .optimizer = &optimizer});
  engine.fill(agreed.first_weights());
  const auto lines = lines_of_run(dir);
  auto options = trainer_options(config, data, nullptr);
  // Uses the recorded learning rate, because a later --steps may have changed the schedule.
  options.rate = [&, rate = schedule(config)](std::uint64_t step) {
    const auto line = lines.find(step);
    return line == lines.end() ? rate.at(step) : line->second.lr;
  };
  Trainer trainer(engine, std::move(options));
  Compared compared;
  for (std::uint64_t step = 1; step <= std::min(kRepeatedSteps, static_cast<std::uint64_t>(config.train.steps)); ++step) {
    if (!trainer.read()) std::rethrow_exception(data.error());
    const auto done = step_of(trainer, config, dir).back();
    const auto line = lines.find(step);
    if (line == lines.end()) {
      screen.warn(fmt::format("step {} has no line in {}, so it is not compared", step, kMetricsFile));
      continue;
    }
    const double loss = done.targets > 0 ? done.mean_loss() : NAN, other = line->second.loss.value_or(NAN);
    const bool equal = loss == other || (std::isnan(loss) && std::isnan(other));
    ++compared.steps;
    compared.same += equal;
    if (done.targets == 0 && !line->second.loss)
      screen.note(fmt::format("step {}: no targets", step));
    else
      screen.note(fmt::format("step {}: offloaded {:.17g}, resident {:.17g}: {}", step, other, loss,
                              equal ? "bit-identical" : "DIFFERENT"));
  }
  demand_all_same(compared, dir);
  screen.note(fmt::format("offloading changed nothing: {} of {} losses are bit-identical to training without offloading",
                          compared.same, compared.steps));
}

}  // namespace terrace::cli
