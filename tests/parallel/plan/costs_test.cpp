// Tests what a plan's times are computed from: the simulator's arithmetic, and costs measured on this machine.
#include <gtest/gtest.h>

#include <terrace/parallel/plan/plan.h>
#include <terrace/parallel/run/measure_costs.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

class OneSecond : public walk::CostModel {
 public:
  double seconds(const Action&) const override { return 1; }
};

Move upload(std::uint64_t sequence, Clock after = {}) {
  return {.chunk = ChunkId{0}, .from = Tier::host, .to = Tier::device, .bytes = 4096, .sequence = sequence, .after = after};
}

TEST(Simulator, ComputingSlowsDownOnlyWhileACopyRuns) {
  MachineProfile profile;
  profile.memory_copy = 4096;  // a second each
  profile.compute_beside_copy = 0.5;
  const OneSecond costs;
  walk::Simulator simulator(costs, profile);
  simulator.move(upload(1));
  simulator.compute({}, {}, {}, Lane::compute, 1);
  const auto times = simulator.finish_step();
  EXPECT_DOUBLE_EQ(times.seconds, 1.5);  // half a second's work beside the copy, the other half alone
  EXPECT_DOUBLE_EQ(times.compute_seconds, 1);
  EXPECT_TRUE(times.stall_s.empty());
}

TEST(Simulator, TwoLanesTakeTheirSharesOfTheComputing) {
  MachineProfile profile;
  profile.memory_copy = 4096;
  profile.disk_read = 2048;  // two seconds
  profile.compute_beside_copy = 0.5;
  profile.compute_beside_disk = 0.8;
  const OneSecond costs;
  walk::Simulator simulator(costs, profile);
  simulator.move(upload(1));
  simulator.move({.chunk = ChunkId{1}, .from = Tier::disk, .to = Tier::host, .bytes = 4096, .sequence = 1, .after = {}});
  simulator.compute({}, {}, {}, Lane::compute, 1);
  EXPECT_DOUBLE_EQ(simulator.finish_step().seconds, 1 + 0.6 / 0.8);  // 0.4 done in the first second, 0.6 left beside the read
}

TEST(Simulator, AWaitForACopyIsAStallOfItsLane) {
  MachineProfile profile;
  profile.memory_copy = 4096;
  const OneSecond costs;
  walk::Simulator simulator(costs, profile);
  simulator.move(upload(1));
  simulator.compute({}, {}, {.offsets = {}, .after = Clock::after(Lane::upload, 1)}, Lane::compute, 1);
  const auto times = simulator.finish_step();
  EXPECT_DOUBLE_EQ(times.seconds, 2);
  EXPECT_DOUBLE_EQ(times.stall_s.at("upload"), 1);
  EXPECT_DOUBLE_EQ(times.begin_s, 1);
  EXPECT_DOUBLE_EQ(times.end_s, 0);
}

// The wait for an update deferred to the next step counts at the step's begin or end; the wait for an upload between two
// actions counts at neither.
TEST(Simulator, WaitsAtAStepsEndsAreToldFromThoseBetween) {
  MachineProfile profile;
  profile.memory_copy = 4096;
  const OneSecond costs;
  walk::Simulator simulator(costs, profile);
  for (std::uint64_t step = 0; step < 2; ++step) {
    const auto after = [&](Lane lane, std::uint64_t number) {
      return memory::Residency::Granted{.offsets = {}, .after = Clock::after(lane, number)};
    };
    const auto first = 2 * step + 1, second = first + 1;
    simulator.compute({.op = Op::update}, {}, {}, Lane::update, first);
    simulator.compute({}, {}, after(Lane::update, first), Lane::compute, first);
    simulator.move(upload(step + 1, Clock::after(Lane::compute, first)));
    simulator.compute({}, {}, after(Lane::upload, step + 1), Lane::compute, second);
    simulator.compute({.op = Op::update}, {}, after(Lane::compute, second), Lane::update, second);
    auto times = simulator.finish_step();
    EXPECT_DOUBLE_EQ(times.seconds, 5);
    EXPECT_DOUBLE_EQ(times.begin_s, 1);
    EXPECT_DOUBLE_EQ(times.end_s, 1);
    EXPECT_DOUBLE_EQ(times.stall_s.at("update"), 2);
    EXPECT_DOUBLE_EQ(times.stall_s.at("upload"), 1);
    times.add(times);
    times.divide(4);
    EXPECT_DOUBLE_EQ(times.begin_s, 0.5);
    EXPECT_DOUBLE_EQ(times.end_s, 0.5);
  }
}

TEST(Simulator, UpdatesBehindTheLastActionAreAStallOfTheirs) {
  const MachineProfile profile;
  const OneSecond costs;
  walk::Simulator simulator(costs, profile);
  simulator.compute({}, {}, {}, Lane::compute, 1);
  const terrace::memory::Residency::Granted behind{.offsets = {}, .after = Clock::after(Lane::compute, 1)};
  simulator.compute({.op = Op::update}, {}, behind, Lane::update, 1);
  simulator.compute({.op = Op::update}, {}, behind, Lane::update, 2);
  const auto times = simulator.finish_step();
  EXPECT_DOUBLE_EQ(times.seconds, 3);
  EXPECT_DOUBLE_EQ(times.stall_s.at("update"), 2);
  EXPECT_DOUBLE_EQ(times.end_s, 2);
  simulator.compute({.op = Op::update}, {}, {}, Lane::update, 3);  // beside the next step
  simulator.compute({}, {}, {}, Lane::compute, 2);
  EXPECT_TRUE(simulator.finish_step().stall_s.empty());
}

// Seconds until a read and a write of 4096 bytes, begun together, have both ended.
double both_ways(double disk_both) {
  MachineProfile profile;
  profile.disk_read = 4096;   // a second alone
  profile.disk_write = 2048;  // two
  profile.disk_both = disk_both;
  profile.disk_latency_s = 0.25;
  const OneSecond costs;
  walk::Simulator simulator(costs, profile);
  simulator.move({.chunk = ChunkId{0}, .from = Tier::disk, .to = Tier::host, .bytes = 4096, .sequence = 1, .after = {}});
  simulator.move({.chunk = ChunkId{1}, .from = Tier::host, .to = Tier::disk, .bytes = 4096, .sequence = 1, .after = {}});
  Clock after = Clock::after(Lane::read, 1);
  after.merge(Clock::after(Lane::write, 1));
  simulator.compute({}, {}, {.offsets = {}, .after = after}, Lane::compute, 1);
  const auto times = simulator.finish_step();
  EXPECT_DOUBLE_EQ(times.stall_s.at("write"), times.seconds - 1);
  return times.seconds - profile.disk_latency_s - 1;
}

TEST(Simulator, ADiskReadsAndWritesAtOnceAsItWasMeasuredTo) {
  EXPECT_DOUBLE_EQ(both_ways(4096 + 2048), 2);       // neither slows the other
  EXPECT_DOUBLE_EQ(both_ways(2 * 4096 / 3.0), 3);    // they take turns
  EXPECT_DOUBLE_EQ(both_ways(2 * 4096 / 2.5), 2.5);  // in between
}

// A CPU device that counts how much is submitted to the stream on which actions are measured, and how often the host waits.
class CountedDevice final : public Device {
 public:
  CountedDevice(Device& inner, bool apart) : inner_(inner), apart_(apart) {}
  std::string name() const override { return inner_.name(); }
  std::unique_ptr<Stream> make_stream(std::string name) override {
    const bool counts = name == "measure";
    auto inner = inner_.make_stream(std::move(name));
    return counts ? std::make_unique<Counted>(*this, std::move(inner)) : std::move(inner);
  }
  MemoryResource& memory() override { return inner_.memory(); }
  std::shared_ptr<MemoryResource> host_memory() override { return inner_.host_memory(); }
  bool computes_on_host() const override { return !apart_; }
  Math& math() override { return inner_.math(); }
  ThreadPool& pool() override { return inner_.pool(); }
  [[nodiscard]] double submitted_a_wait() const { return static_cast<double>(submitted_) / static_cast<double>(waits_); }

 private:
  class Counted final : public Stream {
   public:
    Counted(CountedDevice& device, std::unique_ptr<Stream> inner) : device_(device), inner_(std::move(inner)) {}
    void submit(std::function<void()> work) override { ++device_.submitted_, inner_->submit(std::move(work)); }
    void then(Told told) override { inner_->then(std::move(told)); }
    void wait(const Event& event) override { inner_->wait(event); }
    Event record() override { return ++device_.waits_, inner_->record(); }
    void copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
      ++device_.submitted_, inner_->copy(to, from, bytes);
    }
    Device& device() override { return device_; }

   private:
    CountedDevice& device_;
    std::unique_ptr<Stream> inner_;
  };
  Device& inner_;
  bool apart_;
  std::uint64_t submitted_ = 0, waits_ = 0;
};

// On a device of its own, an action's time must not contain the time to issue it and to learn of its end.
TEST(MeasuredCosts, AnActionIsIssuedOftenBeforeTheHostWaits) {
  toy::RunOptions o;
  const auto model = toy::make_model(o.sizes);
  const auto request = toy::request_of(o);
  const MachineProfile profile;
  const auto planned = plan(model, request, profile);
  ThreadPool pool(1);
  const auto cpu = make_cpu_device(pool);
  const auto optimizer = make_optimizer("adamw", {});
  const StepMap map(model, planned.map);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(o.shape.batch.tokens()) * o.shape.micro_batches, 1);
  CountedDevice here(*cpu, false), apart(*cpu, true);
  for (auto* const device : {&here, &apart}) {
    walk::ProfileCosts costs(map, profile);
    running::measure_costs(costs, map, planned.programs.steady, *device, *optimizer, {.tokens = tokens, .targets = tokens},
                           {.least_s = 0, .total_s = 0});
  }
  EXPECT_NEAR(apart.submitted_a_wait() / here.submitted_a_wait(), 8, 0.1);  // the end of all rounds is a wait, too
}

TEST(MeasuredCosts, TellTimeAndDecideNothing) {
  toy::RunOptions o;
  o.budget = {2 * kMiB, 4 * kMiB, kUnlimited};
  o.disk_tier = true;
  const auto model = toy::make_model(o.sizes);
  const auto request = toy::request_of(o);
  const MachineProfile profile;
  const auto planned = plan(model, request, profile);
  ASSERT_TRUE(planned.fits) << planned.refusal.why;

  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  const auto optimizer = make_optimizer("adamw", {});
  const StepMap map(model, planned.map);
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(o.shape.batch.tokens()) * o.shape.micro_batches, 1);
  const auto& program = planned.programs.steady;

  walk::ProfileCosts estimated(map, profile), measured(map, profile);
  running::measure_costs(measured, map, program, *device, *optimizer, {.tokens = tokens, .targets = tokens});
  for (const auto& action : program.actions) {
    if (action.op == Op::prefetch) continue;
    EXPECT_GT(measured.seconds(action), 0) << to_text(action);
    EXPECT_NE(measured.seconds(action), estimated.seconds(action)) << to_text(action) << " kept its estimate";
  }

  auto timed = planned;
  retime(timed, model, request, profile, measured);
  EXPECT_NE(timed.times.compute_seconds, planned.times.compute_seconds);
  EXPECT_EQ(timed.step_traffic, planned.step_traffic);
  EXPECT_EQ(timed.programs.steady, planned.programs.steady);
  EXPECT_EQ(timed.prefetch_depth, planned.prefetch_depth);
}

}  // namespace
}  // namespace terrace
