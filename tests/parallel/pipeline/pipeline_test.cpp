// Compares pipeline orders with their closed forms (makespan, idle time, live activations), and tests what the checker refuses.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <tuple>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/parallel/pipeline/check.h>
#include <terrace/parallel/pipeline/connect.h>
#include <terrace/parallel/pipeline/forwards.h>
#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::pipeline {
namespace {

using testing::HasSubstr;
using u32 = std::uint32_t;

// Costs of a rank's one stage; in orders with two stages a rank, each stage costs half.
struct Costs {
  double f, i, w;
  [[nodiscard]] StageCosts divided(double by = 1) const { return {.forward = {f / by}, .input = {i / by}, .weight = {w / by}}; }
  [[nodiscard]] double whole() const { return f + i + w; }
};
constexpr Costs kAll[] = {{1, 1, 1}, {1, 1.5, 0.5}, {2, 1, 3}};

template <class Body>
void sweep(const Body& body) {
  for (u32 p = 1; p <= 6; ++p)
    for (u32 m = 1; m <= 16; ++m) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches", p, m));
      body(p, m);
    }
}

// Every order that can have these degrees.
template <class Body>
void for_every_order(u32 p, u32 m, const Body& body) {
  for (const auto& order : all_orders()) {
    if (order.name == "chimera" && p % 2 != 0) continue;
    if (order.name == "dualpipe-v" && m < 2 * p) continue;
    SCOPED_TRACE(order.name);
    body(order);
  }
}

TEST(PipelineOrders, EveryOneIsWholeAndFreeOfDeadlock) {
  int programs = 0;
  sweep([&](u32 p, u32 m) {
    for_every_order(p, m, [&](const NamedOrder& order) {
      for (const u32 chunks : {2U, 3U}) {
        if (chunks == 3 && order.name != "interleaved") continue;
        const auto s = order.write({.ranks = p, .micro_batches = m, .chunks = chunks});
        EXPECT_NO_THROW(simulate(s, {}));
        EXPECT_EQ(to_text(s), to_text(parse_schedule(to_text(s))));
        ++programs;
      }
    });
  });
  EXPECT_GE(programs, 329);
}

TEST(PipelineOrders, LayerwiseUsesOneRankAtATime) {
  for (const auto& c : kAll)
    sweep([&](u32 p, u32 m) {
      const auto t = simulate(layerwise({p, m}), c.divided());
      EXPECT_DOUBLE_EQ(t.makespan, m * p * c.whole());
      EXPECT_NEAR(t.bubble(), (p - 1.0) / p, 1e-12);
      for (const auto live : t.peak_live) EXPECT_EQ(live, 1U);
    });
}

TEST(PipelineOrders, GPipeAnd1F1BIdleTheSameAndHoldWhatTheirPapersSay) {
  for (const auto& c : kAll)
    sweep([&](u32 p, u32 m) {
      const auto all = simulate(gpipe({p, m}), c.divided()), few = simulate(one_f_one_b({p, m}), c.divided());
      EXPECT_DOUBLE_EQ(all.makespan, (m + p - 1) * c.whole());
      EXPECT_NEAR(all.bubble(), (p - 1.0) / (p + m - 1.0), 1e-12);
      EXPECT_DOUBLE_EQ(few.makespan, all.makespan);
      for (u32 r = 0; r < p; ++r) {
        EXPECT_EQ(all.peak_live[r], m);
        EXPECT_EQ(few.peak_live[r], std::min(m, p - r));
      }
    });
}

TEST(PipelineOrders, InterleavingDividesTheBubble) {
  for (const u32 v : {1U, 2U, 3U})
    for (const auto& c : kAll)
      sweep([&](u32 p, u32 m) {
        if (m % p != 0) return;
        SCOPED_TRACE(v);
        const auto t = simulate(interleaved({p, m, v}), c.divided(v));
        EXPECT_NEAR(t.makespan, (v * m + p - 1) * c.whole() / v, 1e-9);
        EXPECT_NEAR(t.bubble(), (p - 1.0) / (v * m + p - 1.0), 1e-9);
        for (u32 r = 0; r < p && v > 1; ++r) EXPECT_EQ(t.peak_live[r], std::min(m * v, 2 * (p - r - 1) + (v - 1) * p + 1));
      });
}

TEST(PipelineOrders, ZbH1FillsTheBubbleWithWeightHalvesInTheMemoryOf1F1B) {
  for (const auto& c : kAll)
    sweep([&](u32 p, u32 m) {
      if (m < 2 * p) return;
      const auto t = simulate(zb_h1({p, m}), c.divided());
      EXPECT_NEAR(t.makespan - m * c.whole(), (p - 1) * std::max(c.f, c.f + c.i - c.w), 1e-9);
      for (const auto live : t.peak_live) EXPECT_LE(live, p);
    });
}

// The least idle time of any order with a barrier at the step's end: one chunk's forward for each rank but one.
TEST(PipelineOrders, ZbVIdlesNoMoreThanTheFloor) {
  sweep([&](u32 p, u32 m) {
    if (m < 2 * p) return;
    const auto t = simulate(zb_v({p, m}), {});  // a stage is half a rank
    const bool exact = p <= 4 || m % (2 * p) == 0;
    EXPECT_GE(t.makespan - m * 2 * 3.0, p - 1.0);
    EXPECT_LE(t.makespan - m * 2 * 3.0, p - 1.0 + (exact ? 0 : 2));
    for (const auto live : t.peak_live) EXPECT_LE(live, 2 * p);
  });
}

TEST(PipelineOrders, ChimeraFillsOneDirectionsBubbleWithTheOther) {
  const StageCosts even{.forward = {1}, .input = {0.5}, .weight = {0.5}};
  for (const u32 p : {2U, 4U, 6U, 8U}) {
    SCOPED_TRACE(p);
    const auto t = simulate(chimera({p, p}), even);
    EXPECT_DOUBLE_EQ(t.makespan, 2.0 * p + p - 2);
    for (const auto live : t.peak_live) EXPECT_LE(live, p);
    if (p == 8) {
      EXPECT_THAT(t.peak_live, testing::ElementsAre(5, 6, 7, 8, 8, 7, 6, 5));
    }
  }
}

TEST(PipelineOrders, DualPipeVIdlesNoMoreThanItsFormula) {
  for (const auto& c : {kAll[0], kAll[1]})  // weight halves no longer than forwards: else they leave gaps of their own
    sweep([&](u32 p, u32 m) {
      if (m < 2 * p) return;
      const auto t = simulate(dualpipe_v({p, m}), c.divided());
      const double b = c.i + c.w;
      EXPECT_LE(t.makespan - 2 * m * c.whole(), (p - 1) * (c.f + 2 * b - 3 * c.w) + 1e-9);
      for (const auto live : t.peak_live) EXPECT_LE(live, 2 * p + 1);
    });
}

TEST(PipelineOrders, AsynchronousOnesReadTheVersionsOfTheirPapersAndDrainOnce) {
  for (const u32 updates : {1U, 2U, 12U})
    sweep([&](u32 p, u32 m) {
      SCOPED_TRACE(updates);
      const auto many = m * updates;
      for (const bool stashed : {true, false}) {
        if (!stashed && m < p && updates > 1) {
          EXPECT_THROW(static_cast<void>(pipedream_2bw({.ranks = p, .micro_batches = m, .updates = updates})), Error);
          continue;
        }
        const OrderOptions options{.ranks = p, .micro_batches = m, .updates = updates};
        const auto s = stashed ? pipedream(options) : pipedream_2bw(options);
        const auto t = simulate(s, {});
        EXPECT_DOUBLE_EQ(t.makespan, (many + p - 1) * 3.0);  // F = I = W = 1: one fill and one drain for all updates
        EXPECT_EQ(to_text(s), to_text(parse_schedule(to_text(s))));
        EXPECT_EQ(reads_lag_an_update(s), !stashed || updates == 1);
        const auto kept = kept_versions(s);
        for (u32 r = 0; r < p; ++r) {
          EXPECT_EQ(t.peak_live[r], std::min(many, p - r));
          if (!stashed) {
            EXPECT_LE(kept[r], 1U);
          } else if (m == 1 && updates >= 2 * p) {
            EXPECT_EQ(kept[r], p - 1 - r) << "p − r versions, the newest one among them";
          } else {
            EXPECT_LE(kept[r], p - 1 - r);
          }
          for (u32 i = 0; i < many; ++i) {
            const auto newest = i < p - 1 - r ? 0 : (i - (p - 1 - r)) / m;
            EXPECT_EQ(s.reads[r][i], stashed ? newest : std::max(i / m, 1U) - 1) << "rank " << r << ", micro-batch " << i;
          }
        }
      }
    });
}

TEST(PipelineCheck, RefusesWeightsThatAreNotMadeYet) {
  auto s = pipedream({.ranks = 3, .micro_batches = 1, .updates = 6});
  check(s);
  ++s.reads[1][4];
  EXPECT_THROW(check(s), Error);
  --s.reads[1][4];
  s.update_every = 4;  // does not divide 6
  EXPECT_THROW(check(s), Error);
}

// The forwards of an evaluation: every micro-batch goes through every stage once, and the ranks idle while the pipeline fills
// and drains.
TEST(PipelineOrders, ForwardsAloneFillThePipeline) {
  sweep([&](u32 p, u32 n) {
    const auto slots = [&](const Placement& placement) {
      const auto s = forwards(placement, n);
      connect(s);
      std::size_t tasks = 0;
      for (const auto& of_rank : s.tasks) tasks += of_rank.size();
      EXPECT_EQ(tasks, std::size_t{placement.stages} * n);
      return simulate(s, {}).makespan;
    };
    EXPECT_DOUBLE_EQ(slots(one_stage_a_rank(p)), n + p - 1);
    for (const u32 v : {2U, 3U}) {
      if (n % p == 0) {
        EXPECT_DOUBLE_EQ(slots(looping(p, v)), n * v + p - 1);
      }
      EXPECT_LE(slots(looping(p, v)), (n + p - 1) * v);
    }
    EXPECT_LE(slots(v_shape(p)), 2 * (n + p - 1));
    if (p % 2 == 0) {
      EXPECT_LE(slots(both_directions(p)), n + p - 1);
    }
  });
}

TEST(PipelineOrders, RefuseDegreesThatTheyCannotHave) {
  EXPECT_THROW(chimera({3, 6}), Error);
  EXPECT_THROW(dualpipe_v({4, 7}), Error);
  EXPECT_THROW(write_order("zigzag", {2, 2}), Error);
  EXPECT_THROW(write_order("gpipe", {0, 2}), Error);
  EXPECT_THROW(list_schedule(v_shape(2), {.micro_batches = 4, .cap = 1}), Error);
}

TEST(ListScheduler, KeepsAnyCapForAnyStages) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> seconds(0.1, 3);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(fmt::format("seed 7, round {}", round));
    const auto p = static_cast<u32>(1 + random() % 6), m = static_cast<u32>(1 + random() % 12);
    const auto placement = random() % 2 ? v_shape(p) : looping(p, static_cast<u32>(1 + random() % 3));
    StageCosts costs{{}, {}, {}, 0.1 * static_cast<double>(random() % 3)};
    for (u32 stage = 0; stage < placement.stages; ++stage) {
      costs.forward.push_back(seconds(random));
      costs.input.push_back(seconds(random));
      costs.weight.push_back(seconds(random));
    }
    const auto cap = static_cast<u32>(placement.stages / p + random() % 5);
    const auto s = list_schedule(placement, {m, cap, random() % 2 == 0, costs});
    const auto t = simulate(s, costs);
    for (const auto live : t.peak_live) EXPECT_LE(live, cap);
  }
}

TEST(PipelineCheck, RefusesWhatIsNoSchedule) {
  const auto error_of = [](const std::string& text) -> std::string {
    return test::error_of([&] { simulate(parse_schedule(text), {}); });
  };
  const std::string head = "pipeline 2 2 1\nplace 0 1\n";
  EXPECT_EQ("", error_of(head + "rank F0.0 B0.0\nrank F1.0 I1.0 W1.0\n"));
  EXPECT_THAT(error_of(head + "rank F0.0\nrank F1.0 B1.0\n"), HasSubstr("I0.0 is missing on rank 0"));
  EXPECT_THAT(error_of(head + "rank F0.0 F0.0 B0.0\nrank F1.0 B1.0\n"), HasSubstr("rank 0, position 1, F0.0: has run already"));
  EXPECT_THAT(error_of(head + "rank B0.0 F0.0\nrank F1.0 B1.0\n"), HasSubstr("its forward has not run"));
  EXPECT_THAT(error_of(head + "rank F0.0 W0.0 I0.0\nrank F1.0 B1.0\n"), HasSubstr("its input half has not run"));
  EXPECT_THAT(error_of(head + "rank F1.0 B0.0\nrank F0.0 B1.0\n"), HasSubstr("belongs to rank 1"));
  EXPECT_THAT(error_of(head + "rank F0.0 B0.0 F2.0\nrank F1.0 B1.0\n"), HasSubstr("there are 2 stages"));
  EXPECT_THAT(error_of("pipeline 1 1 2\nplace 0\nrank F0.0 F0.1 B0.1 B0.0\n"), HasSubstr("micro-batch 0 is next"));
  EXPECT_THAT(error_of(head + "rank F0,0\n"), HasSubstr("line 3"));
  EXPECT_THAT(error_of(head + "rank F0.0 B0.0\n"), HasSubstr("1 ranks have a list, of 2"));
  EXPECT_THAT(error_of("rank F0.0\n"), HasSubstr("expected first"));
  EXPECT_THAT(error_of("# mine\npipeline 2 2 -1\n"), HasSubstr("line 2 of the schedule: '-1' is not accepted"));
  EXPECT_THAT(error_of("pipeline 2 -2 1\n"), HasSubstr("line 1 of the schedule: '-2' is not accepted"));
  EXPECT_THAT(error_of("pipeline 2 2 99999999999\n"), HasSubstr("line 1 of the schedule: '99999999999' is not accepted"));
  EXPECT_THAT(error_of("pipeline 1 1 0\n"), HasSubstr("line 1 of the schedule: expected"));
  EXPECT_THAT(error_of("pipeline 2 4294967295 4294967295\nplace 0 1\n"), HasSubstr("line 1 of the schedule: 2 ranks with"));
  EXPECT_THAT(error_of("pipeline 4294967295 1 1\nplace 0\nrank F0.0 B0.0\n"), HasSubstr("line 1 of the schedule"));
  EXPECT_THAT(error_of("pipeline 2 2 1\nplace 0 -1\nrank F0.0 B0.0\n"), HasSubstr("line 2 of the schedule: '-1'"));
  EXPECT_THAT(error_of(head + "input 1 -1\n"), HasSubstr("line 3 of the schedule: '-1'"));
  EXPECT_THAT(error_of(head + "input 1 1\n"), HasSubstr("line 3 of the schedule: stage 1 cannot read stage 1"));
  EXPECT_THAT(error_of(head + "update -1\n"), HasSubstr("line 3 of the schedule: '-1'"));
  EXPECT_THAT(error_of(head + "update 1\nread -1\n"), HasSubstr("line 4 of the schedule: '-1'"));
  EXPECT_THAT(error_of(head + "update 1\nread 7\n"), HasSubstr("line 4 of the schedule: there is no version 7"));
  EXPECT_THAT(error_of(head + "rank F-1.0\n"), HasSubstr("line 3 of the schedule: 'F-1.0' is no task"));
  EXPECT_EQ("", error_of("pipeline 2 2 1  ranks, stages\nplace 0 1  # 1: the last\nrank F0.0 B0.0\nrank F1.0 B1.0\n"));
}

TEST(PipelineCheck, PrintsTheCircleOfADeadlock) {
  // Rank 0 runs the backward of micro-batch 1 before it sends the forward that rank 1 needs first.
  const std::string text =
      "pipeline 2 2 2\nplace 0 1\nrank F0.1 I0.1 F0.0 I0.0 W0.0 W0.1\nrank F1.0 I1.0 F1.1 I1.1 W1.0 W1.1\n";
  EXPECT_STREQ(
      "the ranks wait for one another:\n  rank 0 at I0.1 waits for I1.1 of rank 1\n  rank 1 at F1.0 waits for F0.0 "
      "of rank 0",
      test::thrown_by([&] { simulate(parse_schedule(text), {}); }).what());
}

// Runs every rank at its own pace. Sends and receives do not block; a lane delivers its messages in the order sent, to its
// receives in the order issued.
void run_connected(const Connected& c, const Schedule& s, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  struct Lane {
    std::vector<Message> sent, asked;
  };
  std::map<std::tuple<u32, u32, Payload>, Lane> lanes;
  const auto lane_of = [&](const Message& m) -> Lane& { return lanes[{m.source, m.destination, m.payload}]; };
  // The message of another rank that a task needs, if it needs one.
  const auto needed = [&](const Task& t, u32 rank) -> std::optional<Message> {
    const bool forward = t.work == Work::forward;
    if (t.work == Work::weight || (forward ? t.stage == 0 : t.stage + 1 == s.placement.stages)) return std::nullopt;
    const auto from = forward ? t.stage - 1 : t.stage + 1;
    const auto source = s.rank_of(from, t.micro_batch);
    if (source == rank) return std::nullopt;
    return Message{forward ? Payload::activation : Payload::gradient, source, rank, forward ? from : t.stage, t.micro_batch};
  };
  std::vector<std::size_t> at(c.actions.size());
  std::size_t left = 0;
  for (const auto& actions : c.actions) left += actions.size();
  for (int idle = 0; left > 0 && idle < 10'000; ++idle) {
    const auto rank = static_cast<u32>(random() % at.size());
    if (at[rank] == c.actions[rank].size()) continue;
    const auto& action = c.actions[rank][at[rank]];
    if (action.op == Action::Op::send) lane_of(action.message).sent.push_back(action.message);
    if (action.op == Action::Op::receive) lane_of(action.message).asked.push_back(action.message);
    if (action.op == Action::Op::compute) {
      if (const auto wanted = needed(action.task, rank)) {
        const auto& lane = lane_of(*wanted);
        const auto place = static_cast<std::size_t>(std::ranges::find(lane.asked, *wanted) - lane.asked.begin());
        ASSERT_LT(place, lane.asked.size()) << to_text(action.task) << " uses what was not asked for";
        if (place >= lane.sent.size()) continue;  // the rank waits for the message
        ASSERT_EQ(lane.sent[place], *wanted) << to_text(action.task) << " would get another message";
      }
    }
    idle = 0;
    ++at[rank];
    --left;
  }
  ASSERT_EQ(left, 0U) << "the ranks wait for one another";
}

TEST(PipelineMessages, AreAsManyAsTheirFormulaAndArriveWhereTheyAreNeeded) {
  sweep([&](u32 p, u32 m) {
    for_every_order(p, m, [&](const NamedOrder& order) {
      const auto s = order.write({.ranks = p, .micro_batches = m});
      std::size_t sent = 0, received = 0;
      for (const auto& actions : connect(s).actions)
        for (const auto& a : actions) {
          sent += a.op == Action::Op::send;
          received += a.op == Action::Op::receive;
        }
      const bool turns = s.placement.rank_of[0].back() == 0 && p > 1;  // a V turns on one rank, without a message
      const std::size_t edges = p == 1 ? 0 : s.placement.stages - 1 - (turns ? 1 : 0);
      EXPECT_EQ(sent, 2 * m * edges);
      EXPECT_EQ(received, sent);
    });
  });
}

TEST(PipelineMessages, NeverHoldEachOtherUpOnLanesOfTheirOwn) {
  sweep([&](u32 p, u32 m) {
    for_every_order(p, m, [&](const NamedOrder& order) {
      const auto s = order.write({.ranks = p, .micro_batches = m});
      run_connected(connect(s), s, 100 * p + m);
    });
  });
}

// Both ranks of a stage run its reductions, in the same order for all reductions that they share, behind the gradients that are
// added and before the next ones.
TEST(PipelineMessages, TwoDirectionsAddTheirGradientsTogether) {
  using Op = Action::Op;
  for (u32 p = 2; p <= 8; p += 2)
    for (u32 m = 2; m <= 32; m += 2)
      for (const auto reduced : {Reduced::once, Reduced::each_round}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches, {}", p, m, reduced == Reduced::once ? "once" : "each round"));
        const auto s = chimera({p, m});
        const auto connected = connect(s, reduced);
        std::map<std::pair<u32, u32>, std::vector<Task>> of_pair;  // the reductions of each pair of ranks
        for (u32 rank = 0; rank < p; ++rank) {
          std::map<u32, u32> gradients, reductions;  // by stage
          std::vector<Task> mine;
          for (const auto& a : connected.actions[rank]) {
            if (a.op == Op::compute && a.task.work == Work::backward) {
              ++gradients[a.task.stage];
              if (reduced == Reduced::each_round) {
                EXPECT_EQ(gradients[a.task.stage], reductions[a.task.stage] + 1);
              }
            }
            if (a.op != Op::reduce) continue;
            ++reductions[a.task.stage];
            mine.push_back(a.task);
            EXPECT_EQ(a.task.micro_batch + 1, 2 * gradients[a.task.stage]);
          }
          EXPECT_EQ(gradients.size(), 2U);
          for (const auto& [stage, count] : reductions) EXPECT_EQ(count, reduced == Reduced::once ? 1 : m / 2);
          auto& pair = of_pair[{std::min(rank, p - 1 - rank), std::max(rank, p - 1 - rank)}];
          if (pair.empty()) pair = mine;
          EXPECT_EQ(pair, mine);
        }
      }
}

TEST(PipelineMessages, OneLaneARankDeadlocks1F1BWhereSendsWait) {
  EXPECT_TRUE(blocking_ends(gpipe({4, 8})));
  EXPECT_TRUE(blocking_ends(one_f_one_b({1, 8})));
  EXPECT_FALSE(blocking_ends(one_f_one_b({4, 8})));
  EXPECT_FALSE(blocking_ends(interleaved({4, 8, 2})));
}

TEST(PipelineScale, SixtyFourRanksAndAThousandMicroBatches) {
  const auto s = interleaved({64, 1024, 4});
  const auto t = simulate(s, {});
  EXPECT_NEAR(t.bubble(), 63.0 / (4 * 1024 + 63), 1e-9);
  // Messages cross every edge between stages once for each micro-batch and direction.
  const auto connected = connect(s);
  std::size_t messages = 0;
  for (const auto& actions : connected.actions)
    messages += static_cast<std::size_t>(std::ranges::count(actions, Action::Op::send, &Action::op));
  EXPECT_EQ(messages, 2U * 1024 * (4 * 64 - 1));
}

}  // namespace
}  // namespace terrace::pipeline
