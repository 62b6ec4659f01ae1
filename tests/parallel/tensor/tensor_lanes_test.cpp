// Collectives of tensor ranks do not queue behind those of data ranks, in the simulation and in the run, and neither lane waits
// for ever if the other one fails. No test looks at a clock: a simulation has its own, and in the run a gather does not end
// before the sum that must not wait for it has begun.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include <terrace/core/base/error.h>
#include <terrace/parallel/map/collective.h>
#include <terrace/tests/doubles/faults.h>

#include <terrace/tests/parallel/tensor/tensor_run.h>

namespace terrace::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// Four ranks. A layer's weights are gathered while the layer before it computes.
TensorRun sharded_run(bool sequence = false) {
  TensorRun o{.config = {.family = lm::family_named("gpt2"),
                         .layers = 2,
                         .hidden = 64,
                         .heads = 4,
                         .seq_len = 16,
                         .vocab = 257,
                         .tied = false,
                         .dtype = DType::fp32},
              .tensor_ranks = 2,
              .sequence = sequence,
              .batch = {1, 16},
              .data = {.ranks = 2, .zero = 3},
              .chunk_elements = 1 << 20};  // a layer is one chunk
  return o;
}

struct Planned {
  lm::ModelConfig config;
  Model model;
  PlanRequest request;
  Plan plan;
};

Planned planned(const TensorRun& o, std::uint32_t rank = 0) {
  auto config = o.config;
  config.place = {.mesh = {.part = o.tensor_ranks}, .rank = rank % o.tensor_ranks, .sequence = o.sequence};
  Planned p{.config = config, .model = lm::make_model(config), .request = {}, .plan = {}};
  const auto optimizer = make_optimizer(o.optimizer, {});
  p.request = request_of(o, *optimizer, rank);
  p.request.gather_ahead = 1;
  p.plan = for_rank(plan(p.model, p.request, {}), p.model, p.request, {});
  return p;
}

// The number of an action among its lane's actions, and of its last call among the lane's calls.
struct Numbered {
  std::size_t action = 0, call = 0;
};
struct Pair {
  Numbered gather, sum;
};
// Pairs each gather that is followed by another layer's forward with the sum of that forward's results.
std::vector<Pair> pairs_of(const StepMap& map, const Program& program) {
  std::vector<Pair> pairs;
  std::optional<Numbered> gather;
  std::uint32_t gathered = 0;
  bool computed = false;
  Numbered data, tensor;
  for (const auto& a : program.actions) {
    if (is_layer_action(a.op)) {
      computed = true;
      if (a.op != Op::forward || a.layer == gathered) gather.reset();
    }
    const bool exchanges = has_phases(a.op) && map.phases().exchanges(a);
    if (!communicates(a.op) && !exchanges) continue;
    auto& last = a.op == Op::unify || exchanges ? tensor : data;
    const auto calls = mapping::collectives_of(map, a).size();
    const Numbered here{last.action, last.call + calls - 1};
    last = {last.action + 1, last.call + calls};
    if (a.op == Op::gather) gather = here, gathered = a.layer, computed = false;
    const bool sums =
        exchanges && a.op == Op::forward && map.phases().phase(a).exchange->operation != comm::Operation::all_gather;
    if (!sums || !gather || !computed) continue;
    pairs.push_back({*gather, here});
    gather.reset();
  }
  return pairs;
}

TEST(TensorLanes, ALaneHasTheCollectivesOfItsRanks) {
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U})
    for (const auto* const schedule : {"", "1f1b", "pipedream-2bw"}) {
      auto o = sharded_run(zero % 2 == 1);
      o.config.kv_heads = 0;
      o.data.zero = zero;
      o.schedule = schedule;
      if (zero > 1 && std::string_view(schedule) == "pipedream-2bw") continue;
      const auto p = planned(o);
      const StepMap map(p.model, p.plan.map);
      const auto& programs = p.plan.programs;
      for (const auto* const program : {&programs.first, &programs.steady, &programs.drain, &programs.evaluate})
        for (const auto& a : program->actions) {
          if (is_message(a.op)) continue;
          for (const auto& c : mapping::collectives_of(map, a))
            EXPECT_EQ(c.members.lane, map.places().lane_of(a)) << to_text(a);
        }
    }
}

// Gathers take a hundred times as long as anything else.
class SlowGathers final : public walk::CostModel {
 public:
  double seconds(const Action& a) const override { return a.op == Op::gather ? 100 : is_placement(a.op) ? 0 : 1; }
};

TEST(TensorLanes, ASumDoesNotWaitForAGatherInTheSimulation) {
  for (const bool sequence : {false, true}) {
    const auto p = planned(sharded_run(sequence));
    ASSERT_TRUE(p.plan.fits);
    Trace trace;
    trace_step(p.plan, p.model, p.request, {}, SlowGathers(), trace);
    const auto spans_of = [&](std::string_view lane) {
      std::vector<TraceSpan> spans;
      for (const auto& s : trace.spans())
        if (s.lane == lane) spans.push_back(s);
      return spans;
    };
    const auto sums = spans_of("tensor"), gathers = spans_of("communication"), computed = spans_of("compute");
    const StepMap map(p.model, p.plan.map);
    const auto pairs = pairs_of(map, p.plan.programs.steady);
    EXPECT_GE(pairs.size(), map.layers() - 1);
    for (const auto& pair : pairs) {
      const auto& sum = sums.at(pair.sum.action);
      const auto& gather = gathers.at(pair.gather.action);
      SCOPED_TRACE(gather.name + ", " + sum.name);
      EXPECT_LT(sum.end_ns, gather.end_ns);
      EXPECT_TRUE(std::ranges::any_of(computed, [&](const TraceSpan& s) { return s.end_ns == sum.begin_ns; }))
          << "it does not begin when what it sums is there";
    }
  }
}

// Makes the gathers of one rank wait for sums of tensor ranks.
class Gate {
 public:
  void begin(std::vector<Pair> pairs) {
    const std::lock_guard lock(mutex_);
    pairs_ = std::move(pairs);
    issued_ = {};
    sums_ = 0;
  }
  std::size_t issue(bool tensor) {
    const std::lock_guard lock(mutex_);
    return issued_.at(tensor ? 1 : 0)++;
  }
  void come(bool tensor, std::size_t call) {
    std::unique_lock lock(mutex_);
    if (tensor) {
      sums_ = call + 1;
      changed_.notify_all();
      return;
    }
    for (const auto& p : pairs_) {
      if (p.gather.call != call) continue;
      if (!changed_.wait_for(lock, 60s, [&] { return sums_ > p.sum.call; }))
        throw Error(fmt::format("sum {} waits for gather {}", p.sum.call, call));
      ++met_;
    }
  }
  [[nodiscard]] std::size_t met() const { return met_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Pair> pairs_;
  std::array<std::size_t, 2> issued_{};
  std::size_t sums_ = 0, met_ = 0;
};

class GatedCommunicator final : public Communicator {
 public:
  GatedCommunicator(std::unique_ptr<Communicator> inner, Gate& gate)
      : inner_(std::move(inner)), name_(inner_->name()), gate_(gate) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return name_; }
  const comm::Machines& machines() const override { return inner_->machines(); }
  void issue(Stream& stream, comm::Call what) override {
    if (name_ == "tp" || name_ == "dp")
      stream.submit([this, call = gate_.issue(name_ == "tp")] { gate_.come(name_ == "tp", call); });
    inner_->issue(stream, std::move(what));
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    auto part = inner_->split(color, key, name);
    return part ? std::make_unique<GatedCommunicator>(std::move(part), gate_) : nullptr;
  }

 private:
  std::unique_ptr<Communicator> inner_;
  const std::string name_;
  Gate& gate_;
};

class TensorLanesRun : public FolderTest {};

TEST_F(TensorLanesRun, ASumDoesNotWaitForAGather) {
  for (const bool sequence : {false, true}) {
    const auto o = sharded_run(sequence);
    std::vector<Gate> gates(o.ranks());
    const auto outcome = on_threads(static_cast<int>(o.ranks()), {90s}, [&](Rank& rank) {
      const auto r = static_cast<std::size_t>(rank.comm->rank());
      const auto p = planned(o, static_cast<std::uint32_t>(r));
      const StepMap map(p.model, p.plan.map);
      const auto optimizer = make_optimizer("adamw", {});
      GatedCommunicator ranks(std::move(rank.comm), gates[r]);
      Engine engine(p.model, p.plan,
                    {.device = &rank.device,
                     .store = {.paths = {folder_}, .name = fmt::format("rank{}", r), .temporary = true},
                     .optimizer = optimizer.get(),
                     .communicator = &ranks});
      engine.fill(random_weights(7));
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(o.batch.tokens()) * o.micro_batches, 1);
      for (std::uint64_t step = 1; step <= 2; ++step) {
        gates[r].begin(pairs_of(map, step == 1 ? p.plan.programs.first : p.plan.programs.steady));
        engine.step({.tokens = ids, .targets = ids});
        gates[r].begin({});
        engine.set_pending({.step = step, .learning_rate = 1e-3});
      }
    });
    for (const auto& error : outcome) ASSERT_EQ(error, "");
    for (const auto& gate : gates) EXPECT_GE(gate.met(), 2 * o.config.layers);
  }
}

// Runs all ranks; `wrap` may put a communicator between a rank's run and its own communicator.
Outcome run_with(const TensorRun& o, std::vector<TensorResult>& results,
                 const std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)>& wrap) {
  const auto common = plan_of(o);
  results.assign(o.ranks(), {});
  return on_threads(static_cast<int>(o.ranks()), {60s}, [&](Rank& rank) {
    const auto r = static_cast<std::size_t>(rank.comm->rank());
    const auto comm = wrap(std::move(rank.comm));
    results[r] = run_rank(o, common, comm.get(), nullptr);
  });
}

TEST_F(TensorLanesRun, LanesThatOvertakeEachOtherChangeNoBit) {
  for (const bool sequence : {false, true}) {
    auto o = sharded_run(sequence);
    o.store = folder_;
    std::vector<TensorResult> expected, found;
    for (const auto& error : run_with(o, expected, [](auto comm) { return comm; })) ASSERT_EQ(error, "");
    for (const std::uint64_t seed : {1, 2, 3}) {
      const auto delayed = [&](auto comm) {
        return with_faults(std::move(comm), {.seed = seed, .longest_delay = std::chrono::microseconds(800)});
      };
      for (const auto& error : run_with(o, found, delayed)) ASSERT_EQ(error, "") << seed;
      EXPECT_EQ(expected[0].losses, found[0].losses) << seed;
      EXPECT_EQ(expected[0].norms, found[0].norms) << seed;
      EXPECT_EQ("", first_difference(expected[0].weights, found[0].weights)) << seed;
    }
  }
}

// Lets rank 1 of every set with that name die.
class DyingSets final : public Communicator {
 public:
  DyingSets(std::unique_ptr<Communicator> inner, std::string name, std::uint64_t at_call)
      : inner_(std::move(inner)), name_(std::move(name)), at_call_(at_call) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  const comm::Machines& machines() const override { return inner_->machines(); }
  void issue(Stream& stream, comm::Call call) override { inner_->issue(stream, std::move(call)); }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    auto part = inner_->split(color, key, name);
    return part && name == name_ ? with_faults(std::move(part), {.dying_rank = 1, .dies_at_call = at_call_}) : std::move(part);
  }

 private:
  std::unique_ptr<Communicator> inner_;
  const std::string name_;
  const std::uint64_t at_call_;
};

TEST_F(TensorLanesRun, EveryRankEndsIfOneDiesOnEitherLane) {
  auto o = sharded_run();
  o.store = folder_;
  for (const std::string lane : {"dp", "tp"})
    for (const std::uint64_t call : {1U, 2U, 5U, 13U, 40U}) {
      std::vector<TensorResult> results;
      const auto outcome =
          run_with(o, results, [&](auto comm) { return std::make_unique<DyingSets>(std::move(comm), lane, call); });
      const auto cause = fmt::format("{}: rank 1 died at its call {}, as injected", lane, call);
      EXPECT_THAT(outcome, testing::Contains(HasSubstr(cause)));
      for (const auto& error : outcome) {
        EXPECT_NE(error, "") << cause;
        EXPECT_THAT(error, testing::Not(HasSubstr(" waited "))) << cause;
      }
    }
}

}  // namespace
}  // namespace terrace::test
