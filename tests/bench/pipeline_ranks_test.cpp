// The pipeline benchmark measures the order that it names: every rank computes its tasks in that order, and the simulator of
// all ranks performs the same operations as the run, lane by lane.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include <fmt/format.h>

#include <terrace/bench/ranks/paced_model.h>
#include <terrace/bench/ranks/pipeline_ranks.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/plan/ranks_simulator.h>

namespace terrace::bench {
namespace {

constexpr std::uint32_t kMicroBatches = 6;
constexpr double kUnit_s = 0.0005;

class PipelineRanks : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  const std::uint32_t ranks_ = std::string_view(GetParam()) == "chimera" ? 4 : 3;
  const std::filesystem::path folder_ = fmt::format("pipeline-ranks-test-{}", GetParam());
};

// The names of the operations that began at or after `ns`, by lane.
std::map<std::string, std::vector<std::string>> names_from(const Trace& trace, std::int64_t ns) {
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& span : trace.spans())
    if (span.begin_ns >= ns) names[span.lane].push_back(span.name);
  return names;
}

// Actions of a stage's own layer only: the first and the last layer of the model take no time.
std::vector<std::string> tasks_as_actions(const pipeline::Schedule& s, std::uint32_t rank) {
  const std::map<pipeline::Work, Op> ops{{pipeline::Work::forward, Op::forward},
                                         {pipeline::Work::backward, Op::backward},
                                         {pipeline::Work::input, Op::backward_input},
                                         {pipeline::Work::weight, Op::backward_weight}};
  std::vector<std::string> actions;
  for (const auto& t : s.tasks[rank])
    actions.push_back(to_text(Action{.op = ops.at(t.work), .layer = t.stage + 1, .micro_batch = t.micro_batch}));
  return actions;
}

TEST_P(PipelineRanks, ComputeTheirTasksInOrderAndAsSimulated) {
  const auto p =
      paced_pipeline(pipeline::write_order(GetParam(), {.ranks = ranks_, .micro_batches = kMicroBatches, .chunks = 2}));
  const auto stages = p.schedule.placement.stages;
  const pipeline::StageCosts costs{.forward = {kUnit_s}, .input = {kUnit_s}, .weight = {kUnit_s}};
  const auto model = paced_model(stages, costs, 1024);
  std::vector<Trace> real(ranks_), simulated(ranks_);
  RanksRun run{.directory = folder_, .steps = 3, .traces = &real};
  run.request = {.shape = {{1, 1}, kMicroBatches},
                 .generations = 1,
                 .commits = false,
                 .pipeline = p,
                 .mesh = {.pp = p.schedule.placement.ranks}};
  const auto all = run_ranks(model, run);
  std::vector<Plan> plans;
  for (const auto& rank : all) plans.push_back(rank.plan);
  const auto times =
      planning::simulate_ranks(plans, model, [&](const StepMap&) { return std::make_unique<PacedCosts>(stages, costs); },
                               run.profile, {.steps = 3, .traces = &simulated});
  // Activation memory is reused in program order, so a message may wait for a task that the schedule alone does not make it
  // wait for.
  const auto alone = pipeline::simulate(p.schedule, costs);
  EXPECT_GE(times.step_s.back(), alone.makespan - 1e-9);
  EXPECT_LE(times.step_s.back(), alone.makespan * 1.2);
  EXPECT_EQ(step_seconds(all).size(), 2U);
  for (std::uint32_t r = 0; r < ranks_; ++r) {
    SCOPED_TRACE(fmt::format("rank {}", r));
    EXPECT_EQ(all[r].results.back().live.activations, alone.peak_live[r]);
    // All ranks are in the last step once all of them have ended the step before.
    const auto measured = names_from(real[r], all[r].ended_ns[1]);
    std::vector<std::string> computed;
    for (const auto& name : measured.at("compute")) {
      const bool paced =
          name.find(" l0 ") == std::string::npos && name.find(fmt::format(" l{} ", stages + 1)) == std::string::npos;
      if (paced && (name.starts_with("forward") || name.starts_with("backward"))) computed.push_back(name);
    }
    EXPECT_EQ(computed, tasks_as_actions(p.schedule, r));
    // The lanes of messages are one row of a trace, sorted by their ends.
    auto expected = names_from(simulated[r], 0), seen = measured;
    std::ranges::sort(expected["message"]);
    std::ranges::sort(seen["message"]);
    EXPECT_EQ(expected["compute"], seen["compute"]);
    EXPECT_EQ(expected["message"], seen["message"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, PipelineRanks,
                         testing::Values("layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "chimera", "dualpipe-v"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace terrace::bench
