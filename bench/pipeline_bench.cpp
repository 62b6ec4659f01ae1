#include <terrace/bench/pipeline_bench.h>

#include <algorithm>

#include <fmt/format.h>

#include <terrace/bench/disk_file.h>
#include <terrace/bench/paced_model.h>
#include <terrace/bench/pipeline_ranks.h>
#include <terrace/bench/statistics.h>
#include <terrace/core/error.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/ranks_simulator.h>

namespace terrace::bench {
namespace {

constexpr std::int64_t kParameters = 1024;  // of a stage: an update of them takes no time

class PipelineBench final : public Bench {
 public:
  PipelineBench() {
    for (const auto& order : pipeline::all_orders()) schedules_.emplace_back(order.name);
    schedules_.emplace_back("all");
  }
  std::string_view name() const override { return "pipeline"; }
  std::string_view help() const override {
    return "what a pipeline's ranks idle, beside the simulator, with layers that only take time";
  }
  std::vector<Flag> flags() override {
    return {{"PATH", &path_, "directory of the ranks' stores, which vanish with the run", 1, 1, {}, true},
            {"ranks", &ranks_, "threads of this process", 1, 64},
            {"micro-batches", &micro_batches_, "of a step", 1, 4096},
            {"virtual-stages", &chunks_, "stages a rank, of interleaved", 1, 64},
            {"unit-ms", &unit_ms_, "a rank's forward of a micro-batch; each half of its backward takes as long", 1, 1000},
            {"schedule", &schedule_, "which order", 1, 1, schedules_}};
  }
  void check() override { demand_directory(path_); }

  void run(Session& session) override {
    for (const auto& order : pipeline::all_orders()) {
      if (session.stopped()) return;
      if (schedule_ != "all" && schedule_ != order.name) continue;
      session.progress(fmt::format("{} …", order.name));
      try {
        static_cast<void>(pipeline::part_of(pipeline_of(order.name), 0));
      } catch (const Error& error) {  // not with these degrees
        if (schedule_ != "all") throw;
        session.note(fmt::format("{} is left out: {}", order.name, error.what()));
        continue;
      }
      measure(session, std::string(order.name));
    }
  }

 private:
  [[nodiscard]] pipeline::Pipeline pipeline_of(std::string_view order) const {
    return paced_pipeline(pipeline::write_order(order, {.ranks = static_cast<std::uint32_t>(ranks_),
                                                        .micro_batches = static_cast<std::uint32_t>(micro_batches_),
                                                        .chunks = static_cast<std::uint32_t>(chunks_)}));
  }

  void measure(Session& session, const std::string& order) const {
    const auto pipeline = pipeline_of(order);
    const auto ranks = pipeline.schedule.placement.ranks, stages = pipeline.schedule.placement.stages;
    const double unit_s = 1e-3 * static_cast<double>(unit_ms_) * ranks / stages;
    const pipeline::StageCosts costs{.forward = {unit_s}, .input = {unit_s}, .weight = {unit_s}};
    const auto order_alone = pipeline::simulate(pipeline.schedule, costs);
    const auto model = paced_model(stages, costs, kParameters);

    RanksRun run{.directory = path_, .steps = static_cast<std::uint64_t>(session.runs()) + 1};
    run.request = {
        .shape = {{1, 1}, pipeline.schedule.micro_batches}, .generations = 1, .commits = false, .pipeline = pipeline};
    const auto all = run_ranks(model, run);
    std::vector<Plan> plans;
    for (const auto& rank : all) plans.push_back(rank.plan);
    const auto simulated = simulate_ranks(
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

  std::filesystem::path path_;
  std::int64_t ranks_ = 4, micro_batches_ = 8, chunks_ = 2, unit_ms_ = 20;
  std::string schedule_ = "all";
  std::vector<std::string> schedules_;
};

}  // namespace

std::unique_ptr<Bench> make_pipeline_bench() { return std::make_unique<PipelineBench>(); }

}  // namespace terrace::bench
