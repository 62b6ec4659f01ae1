// Operators of a graph with skips and branches, placed on ranks: their order is proved and timed, each cut edge has one message
// for each direction and micro-batch, and the gradients that the ranks compute equal those of a serial oracle.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/parallel/pipeline/check.h>
#include <terrace/parallel/pipeline/connect.h>
#include <terrace/parallel/pipeline/cut_edges.h>
#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/stage_graph.h>
#include <terrace/tests/doubles/faults.h>
#include <terrace/tests/doubles/ledger.h>

#include <terrace/tests/parallel/comm/rank_group.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::pipeline {
namespace {

using testing::HasSubstr;
using u32 = std::uint32_t;
using Numbers = std::vector<double>;
constexpr std::size_t kWidth = 5;

Placement on_graph(u32 ranks, std::vector<u32> rank_of, std::vector<std::vector<u32>> inputs) {
  const auto stages = static_cast<u32>(rank_of.size());
  return {.ranks = ranks, .stages = stages, .rank_of = {std::move(rank_of)}, .inputs = std::move(inputs)};
}

// A chain in which each stage of the second half also reads the mirrored stage of the first half.
Placement u_net(u32 ranks, u32 stages) {
  auto inputs = chain(stages);
  for (u32 s = stages / 2 + 1; s < stages; ++s) inputs[s].push_back(stages - 1 - s);
  std::vector<u32> rank_of;
  for (u32 s = 0; s < stages; ++s) rank_of.push_back(s * ranks / stages);
  return on_graph(ranks, rank_of, inputs);
}

Placement at_random(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](u32 n) { return static_cast<u32>(random() % n); };
  const u32 ranks = 1 + below(5), stages = 1 + below(12);
  std::vector<u32> rank_of;
  std::vector<std::vector<u32>> inputs(stages);
  for (u32 s = 0; s < stages; ++s) {
    rank_of.push_back(below(ranks));
    std::set<u32> some;
    for (u32 i = 0; s > 0 && i < 1 + below(3); ++i) some.insert(below(s));
    inputs[s].assign(some.begin(), some.end());
  }
  return on_graph(ranks, rank_of, inputs);
}

Schedule order_of(const Placement& placement, u32 micro_batches) {
  return best_list_schedule(placement,
                            {.micro_batches = micro_batches, .cap = placement.stages * micro_batches, .halves = false});
}

std::size_t cut_edges(const Placement& p) {
  std::set<std::pair<u32, u32>> edges;  // the stage of a result, the rank that it goes to
  for (u32 s = 0; s < p.stages; ++s)
    for (const auto input : p.inputs[s])
      if (p.rank_of[0][input] != p.rank_of[0][s]) edges.emplace(input, p.rank_of[0][s]);
  return edges.size();
}

// y = tanh(Σ wᵢ·xᵢ), element by element; without inputs it reads the micro-batch. Results without a reader are summed up as the
// loss.
double weight_of(u32 stage, std::size_t input, std::size_t k) {
  return std::sin(1.0 + 7.0 * stage + 3.0 * static_cast<double>(input) + static_cast<double>(k));
}
double data_of(u32 micro_batch, std::size_t k) { return std::cos(2.0 + 5.0 * micro_batch + static_cast<double>(k)); }

struct Operator {
  u32 stage = 0;
  std::vector<Numbers> gradients;  // for each input's weights, or for the data's

  Operator(u32 s, std::size_t inputs) : stage(s), gradients(std::max<std::size_t>(1, inputs), Numbers(kWidth)) {}
  static double input(std::span<const Numbers* const> x, std::size_t i, std::size_t k, u32 m) {
    return x.empty() ? data_of(m, k) : (*x[i])[k];
  }
  [[nodiscard]] Numbers forward(std::span<const Numbers* const> x, u32 m) const {
    Numbers y(kWidth);
    for (std::size_t k = 0; k < kWidth; ++k) {
      double sum = 0;
      for (std::size_t i = 0; i < gradients.size(); ++i) sum += weight_of(stage, i, k) * input(x, i, k, m);
      y[k] = std::tanh(sum);
    }
    return y;
  }
  // Adds to the weights' gradients and returns those of the inputs.
  std::vector<Numbers> backward(std::span<const Numbers* const> x, const Numbers& y, const Numbers& dy, u32 m) {
    std::vector<Numbers> dx(x.size(), Numbers(kWidth));
    for (std::size_t k = 0; k < kWidth; ++k) {
      const double dz = dy[k] * (1 - y[k] * y[k]);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        gradients[i][k] += dz * input(x, i, k, m);
        if (!x.empty()) dx[i][k] = dz * weight_of(stage, i, k);
      }
    }
    return dx;
  }
};

void add(Numbers& to, const Numbers& more) {
  if (to.empty()) to.assign(more.size(), -0.0);
  for (std::size_t k = 0; k < to.size(); ++k) to[k] += more[k];
}

std::vector<Operator> operators_of(const Placement& p) {
  std::vector<Operator> all;
  for (u32 s = 0; s < p.stages; ++s) all.emplace_back(s, p.inputs[s].size());
  return all;
}

// One micro-batch after the other, without a schedule.
std::vector<Operator> serial(const Placement& p, u32 micro_batches) {
  auto operators = operators_of(p);
  for (u32 m = 0; m < micro_batches; ++m) {
    std::vector<Numbers> y(p.stages), dy(p.stages);
    const auto inputs = [&](u32 s) {
      std::vector<const Numbers*> x;
      for (const auto input : p.inputs[s]) x.push_back(&y[input]);
      return x;
    };
    for (u32 s = 0; s < p.stages; ++s) y[s] = operators[s].forward(inputs(s), m);
    for (u32 s = p.stages; s-- > 0;) {
      if (dy[s].empty()) dy[s].assign(kWidth, 1.0);
      const auto dx = operators[s].backward(inputs(s), y[s], dy[s], m);
      for (std::size_t i = 0; i < dx.size(); ++i) add(dy[p.inputs[s][i]], dx[i]);
    }
  }
  return operators;
}

// A stage's result for one micro-batch, computed on this rank or received from another, and this rank's part of the gradient.
struct Result {
  Numbers y, dy;
  std::vector<Numbers> arrived = {};  // gradients of other ranks
  std::vector<Event> comes = {};      // what is still to arrive
};

// Runs the actions of one rank on a communicator. Live activations are counted as they begin and end.
struct RankRun {
  std::vector<Operator> operators;
  u32 live = 0, peak_live = 0;

  void run(const Schedule& s, const std::vector<Action>& actions, test::Rank& rank) {
    const auto& p = s.placement;
    const StageGraph graph(p);
    operators = operators_of(p);
    std::map<std::pair<u32, u32>, Result> results;  // stage, micro-batch; addresses stay valid
    std::map<std::tuple<u32, u32, Payload>, std::unique_ptr<Stream>> lanes;
    const auto lane_of = [&](const Message& m) -> Stream& {
      auto& stream = lanes[{m.source, m.destination, m.payload}];
      if (!stream) stream = rank.device.make_stream("message");
      return *stream;
    };
    const auto bytes_of = [](Numbers& numbers) {
      return comm::Bytes{reinterpret_cast<std::byte*>(numbers.data()), numbers.size() * sizeof(double)};
    };
    const auto arrive = [](Result& r) {
      for (auto& event : r.comes) event.wait();
      r.comes.clear();
    };
    for (const auto& a : actions) {
      const auto& m = a.message;
      const int lane = static_cast<int>(m.payload);
      auto& of = results[a.op == Action::Op::compute ? std::pair{a.task.stage, a.task.micro_batch}
                                                     : std::pair{m.stage, m.micro_batch}];
      if (a.op == Action::Op::send) {
        auto& numbers = m.payload == Payload::activation ? of.y : of.dy;
        rank.comm->send(lane_of(m), bytes_of(numbers), static_cast<int>(m.destination), lane);
      } else if (a.op == Action::Op::receive) {
        if (of.arrived.capacity() == 0) of.arrived.reserve(p.ranks);  // so that addresses stay valid
        auto& numbers = m.payload == Payload::activation ? of.y : of.arrived.emplace_back();
        numbers.resize(kWidth);
        rank.comm->receive(lane_of(m), bytes_of(numbers), static_cast<int>(m.source), lane);
        of.comes.push_back(lane_of(m).record());
      } else {
        std::vector<const Numbers*> x;
        for (const auto input : p.inputs[a.task.stage]) {
          auto& r = results[{input, a.task.micro_batch}];
          if (a.task.work == Work::forward && p.rank_of[0][input] != p.rank_of[0][a.task.stage]) arrive(r);
          x.push_back(&r.y);
        }
        auto& op = operators[a.task.stage];
        if (a.task.work == Work::forward) {
          peak_live = std::max(peak_live, ++live);
          of.y = op.forward(x, a.task.micro_batch);
          continue;
        }
        arrive(of);
        for (const auto& gradient : of.arrived) add(of.dy, gradient);
        if (graph.readers(a.task.stage).empty()) of.dy.assign(kWidth, 1.0);
        const auto dx = op.backward(x, of.y, of.dy, a.task.micro_batch);
        for (std::size_t i = 0; i < dx.size(); ++i) add(results[{p.inputs[a.task.stage][i], a.task.micro_batch}].dy, dx[i]);
        --live;
      }
    }
    for (auto& [key, stream] : lanes) stream->synchronize();
  }
};

void expect_serial(const Schedule& s, const CommunicationFaults& faults = {}) {
  const auto& p = s.placement;
  const auto connected = connect(s);
  const auto timing = simulate(s, {});
  std::vector<RankRun> runs(p.ranks);
  std::vector<Ledger> ledgers(p.ranks);
  const auto errors = test::on_threads(static_cast<int>(p.ranks), {std::chrono::seconds(60)}, [&](test::Rank& rank) {
    const auto r = static_cast<std::size_t>(rank.comm->rank());
    rank.comm = with_ledger(std::move(rank.comm), ledgers[r]);
    if (faults.longest_delay.count() > 0) rank.comm = with_faults(std::move(rank.comm), faults);
    runs[r].run(s, connected.actions[r], rank);
  });
  for (const auto& error : errors) ASSERT_EQ(error, "");
  std::uint64_t sent = 0, received = 0;
  for (u32 r = 0; r < p.ranks; ++r) {
    EXPECT_EQ(runs[r].peak_live, timing.peak_live[r]) << "rank " << r;
    sent += ledgers[r].of("world", comm::Operation::send).calls;
    received += ledgers[r].of("world", comm::Operation::receive).calls;
  }
  EXPECT_EQ(sent, 2 * s.micro_batches * cut_edges(p));
  EXPECT_EQ(received, sent);

  // Two gradients of one result have the same sum in any order; with more, rounding depends on how they are divided among
  // ranks.
  const StageGraph graph(p);
  bool pairs = true;
  for (u32 stage = 0; stage < p.stages; ++stage) pairs = pairs && graph.readers(stage).size() <= 2;
  const auto oracle = serial(p, s.micro_batches);
  double greatest = 0;
  for (const auto& op : oracle)
    for (const auto& of_input : op.gradients)
      for (const double g : of_input) greatest = std::max(greatest, std::abs(g));
  const double tolerance = pairs ? 0 : 1e-12 * p.stages * greatest;
  for (u32 stage = 0; stage < p.stages; ++stage)
    for (std::size_t i = 0; i < oracle[stage].gradients.size(); ++i)
      for (std::size_t k = 0; k < kWidth; ++k)
        ASSERT_LE(std::abs(runs[p.rank_of[0][stage]].operators[stage].gradients[i][k] - oracle[stage].gradients[i][k]),
                  tolerance)
            << "operator " << stage << ", input " << i << ", element " << k;
}

TEST(OperatorGraphs, UNetsAreTheSerialOnes) {
  for (const u32 ranks : {1U, 2U, 3U, 4U})
    for (const u32 micro_batches : {1U, 2U, 5U}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches", ranks, micro_batches));
      expect_serial(order_of(u_net(ranks, 8), micro_batches));
    }
}

TEST(OperatorGraphs, OfAnyShapeOnAnyRanksAreTheSerialOnes) {
  const auto* const wanted = std::getenv("TERRACE_SEED");
  const std::uint64_t first = wanted ? std::strtoull(wanted, nullptr, 10) : 1;
  for (auto seed = first; seed < first + (wanted ? 1 : 60); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const auto placement = at_random(seed);
    expect_serial(order_of(placement, 1 + static_cast<u32>(seed % 4)),
                  {.seed = seed, .longest_delay = std::chrono::microseconds(seed % 5 == 0 ? 300 : 0)});
  }
}

// Three operators of rank 1 read a result of rank 0: it is sent once, and its gradient comes back once.
TEST(OperatorGraphs, AResultGoesToARankOnce) {
  const auto placement = on_graph(2, {0, 1, 1, 1}, {{}, {0}, {0}, {0, 1, 2}});
  EXPECT_EQ(CutEdges(placement).count(), 1U);
  for (const auto& actions : connect(order_of(placement, 1)).actions)
    EXPECT_EQ(std::ranges::count(actions, Action::Op::send, &Action::op), 1);
  expect_serial(order_of(placement, 3));
}

TEST(OperatorGraphs, OneMicroBatchUsesOneRankAtATimeAndBranchesRunBesideEachOther) {
  const auto alone = simulate(order_of(u_net(4, 8), 1), {.forward = {1}, .input = {1}, .weight = {1}});
  EXPECT_DOUBLE_EQ(alone.makespan, 8 * 3.0);
  EXPECT_DOUBLE_EQ(alone.bubble(), 3.0 / 4);
  // Two branches of equal length, each on its own rank, between the operators that split and join them.
  const auto branches = on_graph(2, {0, 0, 1, 0}, {{}, {0}, {0}, {1, 2}});
  EXPECT_DOUBLE_EQ(simulate(order_of(branches, 1), {.forward = {1}, .input = {1}, .weight = {1}}).makespan, 3 * 3.0);
}

TEST(OperatorGraphs, HaveATextForm) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto text = to_text(order_of(at_random(seed), 2));
    EXPECT_EQ(to_text(parse_schedule(text)), text) << "seed " << seed;
  }
  const std::string skip = "pipeline 2 3 1\nplace 0 1 0\ninput 2 0 1\nrank F0.0 F2.0 B2.0 B0.0\nrank F1.0 B1.0\n";
  EXPECT_EQ(parse_schedule(skip).placement.inputs, (std::vector<std::vector<u32>>{{}, {0}, {0, 1}}));
  EXPECT_NO_THROW(check(parse_schedule(skip)));
  EXPECT_THROW(static_cast<void>(parse_schedule("pipeline 1 2 1\nplace 0 0\ninput 2 0\nrank F0.0 F1.0 B1.0 B0.0\n")), Error);
}

void expect_refused(const Schedule& s, const std::string& why) {
  EXPECT_THAT(test::thrown_by([&] { simulate(s, {}); }).what(), HasSubstr(why));
}

TEST(OperatorGraphs, ThatAreNoneAreRefused) {
  auto s = order_of(u_net(2, 4), 1);
  s.placement.inputs[1] = {2};
  expect_refused(s, "stage 1 cannot read stage 2");
  s.placement.inputs[1] = {0, 0};
  expect_refused(s, "each once");
  s.placement.inputs.pop_back();
  expect_refused(s, "3 stages have inputs, of 4");
  // Rank 0 runs the backward of a stage whose result a skip still reads; the error names the cycle.
  s = parse_schedule("pipeline 2 3 1\nplace 0 1 0\ninput 2 0 1\nrank F0.0 B0.0 F2.0 B2.0\nrank F1.0 B1.0\n");
  expect_refused(s, "rank 0 at B0.0 waits for I1.0 of rank 1\n  rank 1 at B1.0 waits for I2.0 of rank 0");
}

// Layers declare what their stages read, so an order with input lines of its own is refused.
TEST(OperatorGraphs, AreNoPipelineOfLayers) {
  EXPECT_THAT(test::refusal_of([&] {
                static_cast<void>(placement_of({order_of(u_net(2, 4), 2), {0, 1, 2, 3, 4}}));
              }),
              HasSubstr("leave out its input lines"));
}

}  // namespace
}  // namespace terrace::pipeline
