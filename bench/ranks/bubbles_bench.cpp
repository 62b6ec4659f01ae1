// A pipeline's bubbles filled with the disk traffic of its updates. The same updates, of state that does not fit into host
// memory, run either after the last backward of the step, or before the first use of each stage, where most ranks would wait.

#include <fmt/format.h>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/ranks/paced_io.h>
#include <terrace/bench/ranks/paced_model.h>
#include <terrace/bench/ranks/paced_setting.h>
#include <terrace/bench/ranks/pipeline_bench.h>
#include <terrace/bench/ranks/pipeline_ranks.h>
#include <terrace/bench/statistics.h>
#include <terrace/parallel/plan/ranks_simulator.h>

namespace terrace::bench {
namespace {

constexpr std::uint64_t kChunkElements = 16'384, kChunks = 8;  // of a stage
constexpr std::uint64_t kBubbleKinds = 3;                      // weights and two moments, fp32
constexpr double kInstant = 1e15;                              // bytes per second, for work that should take no time

class BubblesBench final : public Bench {
 public:
  std::string_view name() const override { return "bubbles"; }
  std::string_view help() const override {
    return "a pipeline's bubbles filled with the disk traffic of its updates, beside the same traffic at the step's end";
  }
  std::vector<Flag> flags() override {
    auto flags = setting_.flags();
    flags.push_back({"disk-ms", &disk_ms_, "time in which each rank's disk reads all of its state, and writes it", 1, 100'000});
    flags.push_back({"host-percent", &host_percent_, "share of a rank's state that its host memory holds", 20, 100});
    flags.push_back({"prefetch-depth", &depth_, "layer actions between a read and its use, if there is room", 0, 4096});
    flags.push_back({"schedule", &schedule_, "which order", 1, 1, schedules_});
    return flags;
  }
  void check() override { demand_directory(setting_.path); }

  void run(Session& session) override {
    const auto pipeline = setting_.pipeline_of(schedule_);
    const auto stages = pipeline.schedule.placement.stages, ranks = pipeline.schedule.placement.ranks;
    const auto costs = setting_.costs_of(pipeline);
    const auto order_alone = pipeline::simulate(pipeline.schedule, costs);
    const auto model = paced_model(stages, costs, static_cast<std::int64_t>(kChunks * kChunkElements));

    const auto state_bytes = stages / ranks * kChunks * kBubbleKinds * kChunkElements * sizeof(float);
    const double disk = static_cast<double>(state_bytes) / (1e-3 * static_cast<double>(disk_ms_));
    RanksRun run{.directory = setting_.path, .steps = static_cast<std::uint64_t>(session.runs()) + 2};
    run.profile.disk_read = run.profile.disk_write = disk;
    run.profile.disk_both = 2 * disk;
    run.profile.memory_copy = run.profile.memory_stream = kInstant;
    run.profile.disk_latency_s = 0;
    run.request = {.shape = {{1, 1}, pipeline.schedule.micro_batches},
                   .budget = {.host = state_bytes * static_cast<std::uint64_t>(host_percent_) / 100, .disk = kUnlimited},
                   .disk_tier = true,
                   .update = Tier::host,
                   .prefetch_depth = static_cast<std::uint32_t>(depth_),
                   .chunk_elements = kChunkElements,
                   .generations = 1,
                   .commits = false,
                   .pipeline = pipeline,
                   .mesh = {.pp = pipeline.schedule.placement.ranks}};
    run.make_io = [disk](const IoOptions& options) { return make_paced_engine(make_io_engine(options), disk, disk); };

    double end_s = 0, simulated_end_s = 0;
    for (const bool at_end : {true, false}) {
      if (session.stopped()) return;
      run.drain_at_end = at_end;
      session.progress(fmt::format("updates {} …", at_end ? "at the end" : "in bubbles"));
      const auto all = run_ranks(model, run);
      auto seconds = step_seconds(all);
      seconds.erase(seconds.begin());  // leaves out the first step with a pending update, whose moments are still empty
      std::vector<Plan> plans;
      for (const auto& rank : all) plans.push_back(rank.plan);
      const auto simulated =
          planning::simulate_ranks(plans, model, [&](const StepMap&) { return std::make_unique<PacedCosts>(stages, costs); },
                                   run.profile, {.steps = run.steps, .drain_at_end = at_end});
      const double step_s = median(seconds), simulated_s = simulated.step_s.back();
      if (at_end) end_s = step_s, simulated_end_s = simulated_s;
      session.result({{"op", at_end ? "end" : "bubbles"},
                      {"schedule", schedule_},
                      {"ranks", ranks},
                      {"micro_batches", pipeline.schedule.micro_batches},
                      {"stages", stages},
                      {"state_bytes", state_bytes},
                      {"read_bytes", plans.front().steady_traffic.read},
                      {"order_step_s", order_alone.makespan},
                      {"order_bubble", order_alone.bubble()},
                      {"step_s", step_s},
                      {"simulated_step_s", simulated_s},
                      {"saved", 1 - step_s / end_s},
                      {"simulated_saved", 1 - simulated_s / simulated_end_s},
                      {"runs", seconds.size()},
                      {"spread", spread(seconds)}});
    }
  }

 private:
  PacedSetting setting_ = {.micro_batches = 4, .virtual_stages = 4, .unit_ms = 40};
  std::int64_t disk_ms_ = 200, host_percent_ = 60, depth_ = 16;
  std::string schedule_ = "interleaved";
  std::vector<std::string> schedules_ = order_names();
};

}  // namespace

std::unique_ptr<Bench> make_bubbles_bench() { return std::make_unique<BubblesBench>(); }

}  // namespace terrace::bench
