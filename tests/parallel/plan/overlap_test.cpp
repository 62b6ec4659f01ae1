// Communication runs beside computing, in the trace of a real run of ranks and in the simulation of its program alike.
//
// The run proves it without a clock: a layer's computation does not end before the collectives that should run beside it have
// begun, and they do not continue before it has begun. If lanes waited for each other, the run would end with an error.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iostream>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/run/engine.h>
#include <terrace/parallel/walk/overlap.h>

#include <terrace/tests/parallel/zero/data_parallel_run.h>

namespace terrace {
namespace {

using namespace std::chrono_literals;

TEST(OverlapMeter, CountsWhatRunsBesideComputingOnce) {
  walk::OverlapMeter meter;
  meter.add(Lane::compute, 0, 4);
  meter.add(Lane::update, 3, 5);  // on the host, beside the device: counts as computing, too
  meter.add(Lane::compute, 8, 9);
  meter.add(Lane::read, 0, 100);
  meter.add(Lane::communication, 7, 10);
  meter.add(Lane::communication, 1, 2);
  meter.add(Lane::communication, 4, 6);
  const auto out = meter.take();
  EXPECT_DOUBLE_EQ(out.seconds, 6);
  EXPECT_DOUBLE_EQ(out.hidden_s, 3);
  EXPECT_DOUBLE_EQ(out.hidden(), 0.5);
  EXPECT_EQ(meter.take().seconds, 0);
  EXPECT_EQ(walk::Communicated{}.hidden(), 0);
}

constexpr std::uint32_t kLayers = 6, kRanks = 2;
constexpr double kForward_s = 2, kBackward_s = 4, kCollective_s = 1;

struct Pair {
  std::string collective, computation;
  std::size_t number = 0;  // the collective's number in the program
};

// Pairs each collective with the layer's computation that should hide it: the next one in the program, or for a reduction the
// next one behind the backward that it needs. A computation of the collective's own layer does not count.
std::vector<Pair> pairs_of(const Program& program) {
  const auto& actions = program.actions;
  const auto computes = [](const Action& a) { return a.op == Op::forward || a.op == Op::backward; };
  std::vector<Pair> pairs;
  std::size_t collectives = 0;
  for (auto at = actions.begin(); at != actions.end(); ++at) {
    if (!communicates(at->op)) continue;
    const auto number = collectives++;
    const auto ready =
        at->op == Op::gather ? at : std::ranges::find(actions, Action{.op = Op::backward, .layer = at->layer}) + 1;
    const auto partner = std::find_if(ready, actions.end(), computes);
    if (partner != actions.end() && partner->layer != at->layer) pairs.push_back({to_text(*at), to_text(*partner), number});
  }
  return pairs;
}

// The computations and collectives of one rank's step that wait for each other.
class Meetings {
 public:
  void begin(const Program& program) {
    const std::lock_guard lock(mutex_);
    pairs_ = pairs_of(program);
    issued_ = 0;
    computing_.clear();
    communicating_.clear();
  }
  // Returns the number of the collective that is issued now.
  std::size_t issue() {
    const std::lock_guard lock(mutex_);
    return issued_++;
  }
  void compute(const std::string& name) {
    come(computing_, name, [&] {
      for (const auto& p : pairs_)
        if (p.computation == name && !communicating_.contains(p.number)) return false;
      return true;
    });
  }
  void communicate(std::size_t number) {
    come(communicating_, number, [&] {
      for (const auto& p : pairs_)
        if (p.number == number && !computing_.contains(p.computation)) return false;
      return true;
    });
  }

 private:
  template <class T, class Met>
  void come(std::set<T>& there, const T& who, const Met& met) {
    std::unique_lock lock(mutex_);
    there.insert(who);
    changed_.notify_all();
    if (!changed_.wait_for(lock, 60s, met)) throw Error(fmt::format("{}: nothing ran beside it", who));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Pair> pairs_;
  std::size_t issued_ = 0;
  std::set<std::string> computing_;
  std::set<std::size_t> communicating_;
};

class MeetingLayer final : public Layer {
 public:
  MeetingLayer(std::uint32_t number, Meetings* meetings) : number_(number), meetings_(meetings) {}
  std::string name() const override { return fmt::format("layers.{}", number_); }
  std::vector<ParamSpec> params() const override { return {{.name = name() + ".weight", .shape = {1024}}}; }
  LayerFacts facts(BatchShape) const override { return {}; }
  void describe(CallSteps& steps, LayerCall call, BatchShape) const override {
    if (call == LayerCall::forward)
      steps.compute([this](LayerContext& ctx, const LayerTensors& t) {
        clear(ctx.stream, t.y);
        meet(ctx.stream, Op::forward);
      });
    if (call == LayerCall::backward)
      steps.compute([this](LayerContext& ctx, const LayerTensors& t) {
        clear(ctx.stream, t.dx);
        clear(ctx.stream, t.gradients[0]);
        if (!t.dy.data) clear(ctx.stream, ctx.loss);
        meet(ctx.stream, Op::backward);
      });
  }

 private:
  static void clear(Stream& stream, const TensorView& view) {
    if (view.data) stream.submit([view] { std::memset(view.data, 0, view.bytes()); });
  }
  void meet(Stream& stream, Op op) const {
    stream.submit([meetings = meetings_, name = to_text(Action{.op = op, .layer = number_})] { meetings->compute(name); });
  }
  std::uint32_t number_;
  Meetings* meetings_;
};

Model meeting_model(Meetings* meetings) {
  Model model{.family = "meeting", .dtype = DType::fp32, .width = 16, .layers = {}};
  for (std::uint32_t l = 0; l < kLayers; ++l) model.layers.push_back(std::make_unique<MeetingLayer>(l, meetings));
  return model;
}

class MeetingCommunicator final : public Communicator {
 public:
  MeetingCommunicator(std::unique_ptr<Communicator> inner, Meetings& meetings)
      : inner_(std::move(inner)), name_(inner_->name()), meetings_(meetings) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return name_; }
  const comm::Machines& machines() const override { return inner_->machines(); }
  void issue(Stream& stream, comm::Call call) override {
    stream.submit([this, number = meetings_.issue()] { meetings_.communicate(number); });
    inner_->issue(stream, std::move(call));
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    return inner_->split(color, key, name);
  }

 private:
  std::unique_ptr<Communicator> inner_;
  const std::string name_;
  Meetings& meetings_;
};

class GivenCosts final : public walk::CostModel {
 public:
  double seconds(const Action& a) const override {
    if (communicates(a.op)) return kCollective_s;
    return a.op == Op::forward ? kForward_s : a.op == Op::backward ? kBackward_s : 0;
  }
};

using Spans = std::vector<TraceSpan>;

// The last `count` spans of a lane, which are those of the last step. (Its first spans may begin where others end.)
Spans last_of(const Trace& trace, const std::string& lane, std::size_t count) {
  Spans spans;
  for (const auto& s : trace.spans())
    if (s.lane == lane) spans.push_back(s);
  EXPECT_GE(spans.size(), count);
  spans.erase(spans.begin(), spans.end() - static_cast<std::ptrdiff_t>(std::min(count, spans.size())));
  return spans;
}

std::vector<std::string> names_of(const Spans& spans) {
  std::vector<std::string> names;
  for (const auto& s : spans) names.push_back(s.name);
  return names;
}

// The trace has a program's computations and collectives in the program's order, and each pair overlaps in time.
void expect_beside(const Trace& trace, const Program& program) {
  Program computations, collectives;
  for (const auto& a : program.actions)
    if (communicates(a.op)) {
      collectives.actions.push_back(a);
    } else if (!is_placement(a.op)) {
      computations.actions.push_back(a);
    }
  const auto computed = last_of(trace, "compute", computations.actions.size());
  const auto communicated = last_of(trace, "communication", collectives.actions.size());
  const auto names = [](const Program& p) {
    std::vector<std::string> all;
    for (const auto& a : p.actions) all.push_back(to_text(a));
    return all;
  };
  ASSERT_EQ(names_of(computed), names(computations));
  ASSERT_EQ(names_of(communicated), names(collectives));
  for (const auto& pair : pairs_of(program)) {
    SCOPED_TRACE(pair.collective + " beside " + pair.computation);
    const auto& collective = communicated[pair.number];
    const auto computation = std::ranges::find(computed, pair.computation, &TraceSpan::name);
    EXPECT_LT(collective.begin_ns, computation->end_ns);
    EXPECT_LT(computation->begin_ns, collective.end_ns);
  }
}

class Overlap : public test::FolderTest, public testing::WithParamInterface<std::uint32_t> {};

TEST_P(Overlap, IsInTheTraceAndInTheSimulation) {
  const auto directory = folder_;
  const PlanRequest request{.shape = {{1, 1}, 1},
                            .generations = 1,
                            .commits = false,
                            .mesh = {.shard = kRanks},
                            .data = {.zero = GetParam()},
                            .gather_ahead = 1};
  std::vector<Meetings> meetings(kRanks);
  std::vector<Trace> traces(kRanks);
  std::vector<running::StepResult> results(kRanks);
  const auto outcome = test::on_threads(kRanks, {2min}, [&](test::Rank& rank) {
    const auto r = static_cast<std::size_t>(rank.comm->rank());
    const auto model = meeting_model(&meetings[r]);
    auto own = request;
    own.rank = static_cast<std::uint32_t>(r);
    const auto p = for_rank(plan(model, own, {}), model, own, {});
    const auto optimizer = make_optimizer("adamw", {});
    MeetingCommunicator ranks(std::move(rank.comm), meetings[r]);
    Engine engine(model, p,
                  {.device = &rank.device,
                   .store = {.paths = {directory}, .name = fmt::format("rank{}", r), .temporary = true},
                   .optimizer = optimizer.get(),
                   .communicator = &ranks,
                   .trace = &traces[r]});
    engine.fill([](const ParamSpec&, std::uint64_t, TensorView range) { std::memset(range.data, 0, range.bytes()); });
    const std::vector<std::int32_t> ids(1, 0);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      traces[r].forget_before(now_ns());
      meetings[r].begin(step == 1 ? p.programs.first : p.programs.steady);
      results[r] = engine.step({.tokens = ids, .targets = ids});
      engine.set_pending({.step = step, .learning_rate = 1e-3});
    }
  });
  for (const auto& error : outcome) ASSERT_EQ(error, "");

  const auto model = meeting_model(nullptr);
  auto p = plan(model, request, {});
  ASSERT_TRUE(p.fits);
  Trace simulated;
  trace_step(p, model, request, {}, GivenCosts(), simulated);
  retime(p, model, request, {}, GivenCosts());
  const auto pairs = pairs_of(p.programs.steady);
  // Every reduction but the first layer's stands before another layer's backward; with ZeRO-3, gathers have partners in forward
  // and backward, too.
  EXPECT_GE(pairs.size(), GetParam() == 3 ? 3 * (kLayers - 1) - 1 : kLayers - 1);
  for (std::size_t r = 0; r < kRanks; ++r) {
    SCOPED_TRACE(fmt::format("rank {}", r));
    expect_beside(traces[r], p.programs.steady);
    EXPECT_GT(results[r].communicated.hidden_s, 0);
    EXPECT_LE(results[r].communicated.hidden_s, results[r].communicated.seconds);
  }
  expect_beside(simulated, p.programs.steady);
  // A collective takes half of a forward, so each one that has a partner is hidden completely.
  EXPECT_GE(p.times.communicated.hidden_s, kCollective_s * static_cast<double>(pairs.size()) - 1e-9);
  std::cout << fmt::format("ZeRO-{}: {:.0f} % of communication beside computing in the run, {:.0f} % in the simulation\n",
                           GetParam(), 100 * results[0].communicated.hidden(), 100 * p.times.communicated.hidden());
}

INSTANTIATE_TEST_SUITE_P(Stages, Overlap, testing::Values(0U, 1U, 2U, 3U),
                         [](const auto& of) { return fmt::format("Zero{}", of.param); });

}  // namespace
}  // namespace terrace
