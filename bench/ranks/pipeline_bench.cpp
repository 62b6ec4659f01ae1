#include <terrace/bench/ranks/pipeline_bench.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/ranks/paced_model.h>
#include <terrace/bench/ranks/paced_setting.h>
#include <terrace/bench/ranks/pipeline_ranks.h>
#include <terrace/bench/statistics.h>
#include <terrace/core/base/error.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/plan/ranks_simulator.h>

namespace terrace::bench {
namespace {

constexpr std::int64_t kParameters = 1024;  // of a stage; so few that an update takes no time

class PipelineBench final : public Bench {
 public:
  PipelineBench() { schedules_.emplace_back("all"); }
  std::string_view name() const override { return "pipeline"; }
  std::string_view help() const override {
    return "idle time of a pipeline's ranks, compared with the simulator; layers only take time";
  }
  std::vector<Flag> flags() override {
    auto flags = setting_.flags();
    flags.push_back({"schedule", &schedule_, "which order", 1, 1, schedules_});
    return flags;
  }
  void check() override { demand_directory(setting_.path); }

  void run(Session& session) override {
    for (const auto& order : pipeline::all_orders()) {
      if (session.stopped()) return;
      if (order.asynchronous) continue;
      if (schedule_ != "all" && schedule_ != order.name) continue;
      session.progress(fmt::format("{} …", order.name));
      try {
        static_cast<void>(pipeline::placement_of(setting_.pipeline_of(order.name)));
      } catch (const Error& error) {  // this order is impossible with these degrees
        if (schedule_ != "all") throw;
        session.note(fmt::format("{} is left out: {}", order.name, error.what()));
        continue;
      }
      measure(session, std::string(order.name));
    }
  }

 private:
  void measure(Session& session, const std::string& order) const {
    const auto pipeline = setting_.pipeline_of(order);
    const auto ranks = pipeline.schedule.placement.ranks, stages = pipeline.schedule.placement.stages;
    const auto costs = setting_.costs_of(pipeline);
    const auto order_alone = pipeline::simulate(pipeline.schedule, costs);
    const auto model = paced_model(stages, costs, kParameters);

    RanksRun run{.directory = setting_.path, .steps = static_cast<std::uint64_t>(session.runs()) + 1};
    run.request = {.shape = {{1, 1}, pipeline.schedule.micro_batches},
                   .generations = 1,
                   .commits = false,
                   .pipeline = pipeline,
                   .mesh = {.pp = ranks}};
    const auto all = run_ranks(model, run);
    std::vector<Plan> plans;
    for (const auto& rank : all) plans.push_back(rank.plan);
    const auto simulated = planning::simulate_ranks(
        plans, model, [&](const StepMap&) { return std::make_unique<PacedCosts>(stages, costs); }, run.profile, {});
    const auto seconds = step_seconds(all);
    std::vector<double> bubbles;
    std::uint32_t live = 0;
    for (std::size_t s = 0; s < seconds.size(); ++s) {
      double busy_s = 0;
      for (const auto& rank : all) busy_s += rank.results[s + 1].compute_seconds;
      bubbles.push_back(1 - busy_s / (seconds[s] * ranks));
      for (const auto& rank : all) live = std::max(live, rank.results[s + 1].live.activations);
    }
    session.result({{"op", order},
                    {"ranks", ranks},
                    {"micro_batches", pipeline.schedule.micro_batches},
                    {"stages", stages},
                    {"step_s", median(seconds)},
                    {"simulated_step_s", simulated.step_s.back()},
                    {"order_step_s", order_alone.makespan},
                    {"bubble", median(bubbles)},
                    {"simulated_bubble", simulated.bubble()},
                    {"ratio", median(bubbles) / simulated.bubble()},
                    {"order_bubble", order_alone.bubble()},
                    {"peak_live", live},
                    {"order_peak_live", *std::ranges::max_element(order_alone.peak_live)},
                    {"runs", seconds.size()},
                    {"spread", spread(seconds)}});
  }

  PacedSetting setting_ = {};
  std::string schedule_ = "all";
  std::vector<std::string> schedules_ = order_names();
};

}  // namespace

std::unique_ptr<Bench> make_pipeline_bench() { return std::make_unique<PipelineBench>(); }

}  // namespace terrace::bench
