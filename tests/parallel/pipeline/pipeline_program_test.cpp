// Lowers every order to the programs of a pipeline's ranks and proves them, each alone and all together; broken programs are
// refused.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <map>
#include <set>

#include <terrace/core/base/error.h>
#include <terrace/parallel/passes/check_messages.h>
#include <terrace/parallel/passes/checker.h>
#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/tests/support/data_ranks.h>
#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace {
namespace {

using testing::HasSubstr;
using u32 = std::uint32_t;

// All ranks of an order over the toy model, with the programs of a plan without limits.
struct Ranks {
  Ranks(std::string_view order, u32 ranks, u32 micro_batches, u32 chunks = 2, bool tied = true, u32 updates = 1,
        bool clipped = true, bool canonical = false)
      : Ranks(pipeline::write_order(order,
                                    {.ranks = ranks, .micro_batches = micro_batches, .chunks = chunks, .updates = updates}),
              tied, clipped, {.canonical = canonical}) {}
  // `blocks` blocks for each stage; the first stage also has the embedding, and the last one the head.
  Ranks(pipeline::Schedule given, bool tied, bool clipped, const test::DataRanks& data, u32 blocks = 1)
      : schedule(std::move(given)),
        model(toy::make_model({.width = 16, .vocab = 33, .blocks = blocks * schedule.placement.stages, .tied = tied})) {
    std::vector<u32> begins{0};
    for (u32 s = 1; s < schedule.placement.stages; ++s) begins.push_back(blocks * s + 1);
    begins.push_back(blocks * schedule.placement.stages + 2);
    request.shape = {{1, 4}, schedule.micro_batches};
    request.evaluate_batches = std::uint64_t{schedule.micro_batches} * data.ranks;
    request.updates_before_use = clipped;
    request.mesh = data.mesh(schedule.placement.ranks);
    request.data = data.settings();
    request.pipeline = {schedule, begins};
    for (u32 r = 0; r < schedule.placement.ranks; ++r) {
      maps.push_back(std::make_unique<StepMap>(model, StepMap::Options{.shape = request.shape,
                                                                       .mesh = request.mesh,
                                                                       .data = request.data,
                                                                       .pipeline = placement_of(*request.pipeline),
                                                                       .rank = r * data.ranks}));
      programs.push_back(planning::write_programs(*maps.back(), request, 0));
    }
  }
  [[nodiscard]] std::vector<Program> all(Program planning::Programs::*which) const {
    std::vector<Program> same;
    for (const auto& p : programs) same.push_back(p.*which);
    return same;
  }
  pipeline::Schedule schedule;
  Model model;
  PlanRequest request;
  std::vector<std::unique_ptr<StepMap>> maps;
  std::vector<planning::Programs> programs;
};

// The most micro-batches that a rank holds at a time, counted for each of its stages: from the receipt or forward of the
// stage's first layer to the backward that ends it.
u32 peak_live(const Ranks& of, u32 rank) {
  const auto& begins = of.request.pipeline->begins;
  std::map<std::pair<u32, u32>, std::size_t> last;  // stage, micro-batch: its last action
  const auto stage_of = [&](u32 layer) {
    return static_cast<u32>(std::ranges::upper_bound(begins, layer) - begins.begin()) - 1;
  };
  const auto& actions = of.programs[rank].first.actions;
  for (std::size_t i = 0; i < actions.size(); ++i)
    if (actions[i].op <= Op::backward_weight) last[{stage_of(actions[i].layer), actions[i].micro_batch}] = i;
  std::set<std::pair<u32, u32>> live;
  u32 peak = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].op > Op::backward_weight) continue;
    const std::pair at{stage_of(actions[i].layer), actions[i].micro_batch};
    live.insert(at);
    peak = std::max(peak, static_cast<u32>(live.size()));
    if (last[at] == i) live.erase(at);
  }
  return peak;
}

TEST(PipelinePrograms, EveryOrderIsProvedOnAllRanksTogether) {
  int programs = 0;
  for (u32 p = 2; p <= 6; ++p)
    for (u32 m = 1; m <= 16; ++m)
      for (const std::string order : {"layerwise", "gpipe", "1f1b", "zb-h1", "zb-v", "interleaved", "dualpipe-v"})
        for (const u32 chunks : {2U, 3U}) {
          if ((chunks == 3 && order != "interleaved") || (order == "dualpipe-v" && m < 2 * p)) continue;
          SCOPED_TRACE(fmt::format("{} on {} ranks, {} micro-batches, {} chunks", order, p, m, chunks));
          const Ranks ranks(order, p, m, chunks);
          for (const auto which : {&planning::Programs::first, &planning::Programs::steady, &planning::Programs::drain,
                                   &planning::Programs::evaluate, &planning::Programs::fill})
            ASSERT_NO_THROW(passes::check_messages(ranks.all(which)));
          const auto timing = pipeline::simulate(ranks.schedule, {});
          for (u32 r = 0; r < p; ++r) ASSERT_EQ(peak_live(ranks, r), timing.peak_live[r]) << "rank " << r;
          ++programs;
        }
  EXPECT_GE(programs, 329);
}

// Gradients are added up once, or after every round of both directions.
TEST(PipelinePrograms, TwoDirectionsAreProvedOnAllRanksTogether) {
  for (u32 p = 2; p <= 8; p += 2)
    for (u32 m = 2; m <= 16; m += 2)
      for (const bool canonical : {false, true})
        for (const bool clipped : {false, true}) {
          SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches{}", p, m, canonical ? ", canonical" : ""));
          const Ranks ranks("chimera", p, m, 2, true, 1, clipped, canonical);
          for (const auto which : {&planning::Programs::first, &planning::Programs::steady, &planning::Programs::drain,
                                   &planning::Programs::evaluate, &planning::Programs::fill})
            ASSERT_NO_THROW(passes::check_messages(ranks.all(which)));
          const auto timing = pipeline::simulate(ranks.schedule, {});
          for (u32 r = 0; r < p; ++r) {
            ASSERT_EQ(peak_live(ranks, r), timing.peak_live[r]) << "rank " << r;
            ASSERT_EQ(parse_program(to_text(ranks.programs[r].steady)), ranks.programs[r].steady);
          }
        }
}

// The input half of the last layer also makes its gradient, so it must wait until the previous round's gradient has been added
// up.
TEST(PipelinePrograms, TwoDirectionsInHalvesAreProvedOnAllRanksTogether) {
  for (u32 p = 2; p <= 6; p += 2)
    for (u32 m = 2; m <= 12; m += 2)
      for (const bool canonical : {false, true}) {
        SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches{}", p, m, canonical ? ", canonical" : ""));
        pipeline::StageCosts costs;
        if (canonical) costs.reduction = costs.last_reduction = {{0, 0}};
        const Ranks ranks(
            pipeline::best_list_schedule(pipeline::both_directions(p), {.micro_batches = m, .cap = m, .costs = costs}), true,
            true, {.canonical = canonical});
        for (const auto which : {&planning::Programs::first, &planning::Programs::steady, &planning::Programs::drain})
          ASSERT_NO_THROW(passes::check_messages(ranks.all(which)));
      }
}

TEST(PipelinePrograms, TwoDirectionsTakeEvenMicroBatchesAndRanksOfTheirOwn) {
  const auto refused = [](pipeline::Schedule s) -> std::string {
    return test::refusal_of([&] { static_cast<void>(pipeline::placement_of({std::move(s), {0, 1, 2}})); });
  };
  EXPECT_EQ(refused(pipeline::write_order("chimera", {.ranks = 2, .micro_batches = 6})), "");
  EXPECT_THAT(refused(pipeline::write_order("chimera", {.ranks = 2, .micro_batches = 7})),
              HasSubstr("`grad-accumulation` 6 or 8"));
  EXPECT_THAT(refused(pipeline::write_order("chimera", {.ranks = 2, .micro_batches = 1})), HasSubstr("`grad-accumulation` 2"));
  EXPECT_THAT(refused({{2, 2, {{0, 1}, {0, 1}}}, 2, {{}, {}}}), HasSubstr("places stage 0 on rank 0 in two directions"));
}

// Embedding and head are tied, so they must be in the outer stages, whose ranks hold both.
TEST(PipelinePrograms, TwoDirectionsOfTiedLayersShareTheirRanks) {
  const auto model = toy::make_model({.width = 16, .vocab = 33, .blocks = 1});
  const pipeline::Pipeline p{pipeline::write_order("chimera", {.ranks = 4, .micro_batches = 4}), {0, 1, 2, 3, 3}};
  EXPECT_THROW(StepMap(model, {.shape = {{1, 4}, 4}, .mesh = {.pp = 4}, .pipeline = placement_of(p)}), Error);
}

TEST(PipelinePrograms, MessagesAreThoseOfTheFormula) {
  for (const auto& [order, p, m, v] :
       {std::tuple{"1f1b", 4U, 6U, 1U}, {"interleaved", 3U, 6U, 2U}, {"zb-v", 3U, 7U, 2U}, {"chimera", 4U, 6U, 1U}}) {
    const Ranks ranks(order, p, m, v, false);
    std::map<Payload, u32> sent;
    for (const auto& program : ranks.all(&planning::Programs::steady))
      for (const auto& a : program.actions)
        if (a.op == Op::send) ++sent[a.payload];
    // In a V the two stages in the middle are on one rank.
    const auto edges = p * v - 1 - (std::string_view(order) == "zb-v" ? 1 : 0);
    EXPECT_EQ(sent[Payload::activation], m * edges) << order;
    EXPECT_EQ(sent[Payload::gradient], m * edges) << order;
    EXPECT_EQ(sent.size(), 2U) << order;
  }
}

TEST(PipelinePrograms, TextRoundTrips) {
  const Ranks ranks("zb-h1", 3, 4);
  for (const auto& p : ranks.programs) EXPECT_EQ(parse_program(to_text(p.steady)), p.steady);
  EXPECT_THROW(static_cast<void>(parse_program("program layers l2 micro-batches m1\nsend love l1 m0 r1\n")), Error);
}

// A program without one of its actions, or with one twice, is refused.
void expect_none_to_spare(const Ranks& ranks, const std::string& order, passes::Updates updates) {
  const auto right = ranks.all(&planning::Programs::steady);
  for (u32 r = 0; r < right.size(); ++r)
    for (std::size_t i = 0; i < right[r].actions.size(); ++i)
      for (const bool doubled : {false, true}) {
        auto wrong = right;
        auto& actions = wrong[r].actions;
        const auto at = actions.begin() + static_cast<std::ptrdiff_t>(i);
        doubled ? actions.insert(at, Action{*at}) : actions.erase(at);
        const auto proved = [&] {
          passes::check_step(wrong[r], *ranks.maps[r], updates);
          passes::check_messages(wrong);
        };
        EXPECT_THROW(proved(), Error) << order << ", rank " << r << ", action " << i << (doubled ? " doubled: " : " removed: ")
                                      << to_text(right[r].actions[i]);
      }
}

TEST(PipelinePrograms, WithAnActionRemovedOrDoubledAreRefused) {
  for (const auto* const order : {"1f1b", "zb-h1", "interleaved"})
    expect_none_to_spare(Ranks(order, 3, 4), order, passes::Updates::before_use);
}

TEST(PipelinePrograms, OfTwoDirectionsWithAnActionRemovedOrDoubledAreRefused) {
  for (const bool canonical : {false, true})
    expect_none_to_spare(Ranks("chimera", 2, 4, 2, true, 1, true, canonical), "chimera", passes::Updates::before_use);
}

TEST(PipelinePrograms, OfTwoDirectionsThatShardTheirStateAreRefusedLikewise) {
  for (const u32 zero : {1U, 3U})
    for (const bool canonical : {false, true}) {
      SCOPED_TRACE(fmt::format("ZeRO-{}{}", zero, canonical ? ", canonical" : ""));
      const auto order = pipeline::write_order("chimera", {.ranks = 2, .micro_batches = 4});
      const Ranks sharded(order, true, true, {.ranks = 2, .zero = zero, .canonical = canonical});
      expect_none_to_spare(sharded, "chimera", passes::Updates::before_use);
    }
}

TEST(PipelinePrograms, AsynchronousOnesAreProvedOnAllRanksTogether) {
  for (u32 p = 1; p <= 6; ++p)
    for (u32 m = 1; m <= 8; ++m)
      for (u32 updates = 1; updates <= 4; ++updates)
        for (const auto& [order, clipped] :
             {std::pair{"pipedream-2bw", true}, {"pipedream-2bw", false}, {"pipedream", false}}) {
          if (std::string_view(order) == "pipedream-2bw" && m < p) continue;
          SCOPED_TRACE(fmt::format("{} on {} ranks, {} updates of {} micro-batches", order, p, updates, m));
          const Ranks ranks(order, p, m, 2, false, updates, clipped);
          const auto steady = ranks.all(&planning::Programs::steady);
          ASSERT_NO_THROW(passes::check_messages(steady));
          const auto kept = pipeline::kept_versions(ranks.schedule);
          for (u32 r = 0; r < p; ++r) {
            ASSERT_EQ(parse_program(to_text(steady[r])), steady[r]);
            const auto count = [&](Op op) { return static_cast<u32>(std::ranges::count(steady[r].actions, op, &Action::op)); };
            ASSERT_EQ(count(Op::verdict), clipped ? updates : 0);
            ASSERT_EQ(count(Op::keep) > 0, kept[r] > 0);
          }
        }
}

TEST(PipelinePrograms, AsynchronousOnesWithAnActionRemovedOrDoubledAreRefused) {
  expect_none_to_spare(Ranks("pipedream-2bw", 3, 3, 2, false, 3, true), "pipedream-2bw", passes::Updates::after_verdict);
  expect_none_to_spare(Ranks("pipedream", 3, 3, 2, false, 3, false), "pipedream", passes::Updates::in_backward);
  // With gradients folded behind every backward.
  expect_none_to_spare(Ranks("pipedream-2bw", 2, 2, 2, false, 2, true, true), "pipedream-2bw", passes::Updates::after_verdict);
}

// The data ranks of a stage shard its state, and its old weights, too.
TEST(PipelinePrograms, AsynchronousOnesThatShardTheirStateAreProvedAndRefused) {
  for (const std::string order : {"pipedream-2bw", "pipedream"})
    for (const u32 zero : {1U, 2U, 3U}) {
      SCOPED_TRACE(fmt::format("{}, ZeRO-{}", order, zero));
      const bool clipped = order == "pipedream-2bw";
      const Ranks ranks(pipeline::write_order(order, {.ranks = 2, .micro_batches = 2, .updates = 3}), false, clipped,
                        {.ranks = 2, .zero = zero});
      const auto steady = ranks.all(&planning::Programs::steady);
      ASSERT_NO_THROW(passes::check_messages(steady));
      for (const auto& program : steady) ASSERT_EQ(parse_program(to_text(program)), program);
      expect_none_to_spare(ranks, order, clipped ? passes::Updates::after_verdict : passes::Updates::in_backward);
      if (zero != 3) continue;
      auto wrong = steady.front();
      const auto old = std::ranges::find_if(wrong.actions, [](const Action& a) { return a.op == Op::gather && a.copy != 0; });
      ASSERT_NE(old, wrong.actions.end());
      old->copy = 0;
      EXPECT_THROW(passes::check_step(wrong, *ranks.maps.front(),
                                      clipped ? passes::Updates::after_verdict : passes::Updates::in_backward),
                   Error);
    }
}

// A deadlock: rank 0 joins the first verdict only after a forward that reads rank 1's second result, and rank 1 gathers the
// weights for that result only after the verdict, which waits for rank 0.
TEST(PipelinePrograms, WhatIsGatheredBehindAVerdictWaitsForAllRanks) {
  const auto order = pipeline::parse_schedule(
      "pipeline 2 3 3\nplace 0 1 0\nupdate 1\nread 0 0 1\nread 0 0 1\nread 0 0 1\n"
      "rank F0.0 F0.1 F2.0 B2.0 F2.1 B0.0 B2.1 B0.1 F0.2 F2.2 B2.2 B0.2\nrank F1.0 B1.0 F1.1 B1.1 F1.2 B1.2\n");
  const auto steady = [&](u32 zero, bool clipped) {
    return Ranks(order, false, clipped, {.ranks = 2, .zero = zero}, 2).all(&planning::Programs::steady);
  };
  EXPECT_NO_THROW(passes::check_messages(steady(3, false)));
  EXPECT_NO_THROW(passes::check_messages(steady(1, true)));
  EXPECT_THAT(test::refusal_of([&] { static_cast<void>(steady(3, true)); }),
              testing::AllOf(HasSubstr("after which weights are gathered"),
                             HasSubstr("`grad-clip` 0, `zero` 1, or another `schedule`")));
}

// A forward or backward on another version of the weights than the order declares.
TEST(PipelinePrograms, AWrongVersionIsRefused) {
  const Ranks ranks("pipedream", 3, 1, 2, false, 6, false);
  auto wrong = ranks.all(&planning::Programs::steady).front();
  const auto reads_old =
      std::ranges::find_if(wrong.actions, [](const Action& a) { return a.op == Op::backward && a.copy == 2; });
  ASSERT_NE(reads_old, wrong.actions.end());
  for (const u32 other : {0U, 1U, 3U}) {
    reads_old->copy = other;
    EXPECT_THROW(passes::check_step(wrong, *ranks.maps.front(), passes::Updates::in_backward), Error) << "copy " << other;
  }
}

TEST(PipelinePrograms, ACircleIsPrinted) {
  auto ranks = Ranks("1f1b", 2, 3).all(&planning::Programs::first);
  // Rank 1 receives its second micro-batch only after it has sent the first one's gradient, and rank 0 receives that gradient
  // only after it has sent the second micro-batch.
  for (const auto& [rank, payload] : {std::pair{1U, Payload::activation}, {0U, Payload::gradient}}) {
    auto& actions = ranks[rank].actions;
    const auto is = [&](Op op, Payload what, u32 m) {
      return [=](const Action& a) { return a.op == op && a.payload == what && a.micro_batch == m; };
    };
    const u32 m = rank == 1 ? 1 : 0;
    const auto receive = std::ranges::find_if(actions, is(Op::receive, payload, m));
    ASSERT_NE(receive, actions.end());
    const auto moved = *receive;
    actions.erase(receive);
    const auto send =
        std::ranges::find_if(actions, rank == 1 ? is(Op::send, Payload::gradient, 0) : is(Op::send, Payload::activation, 1));
    ASSERT_NE(send, actions.end());
    actions.insert(send + 1, moved);
  }
  EXPECT_THAT(test::thrown_by([&] { passes::check_messages(ranks); }).what(),
              testing::AllOf(HasSubstr("rank 0 at action"), HasSubstr("send activation l"), HasSubstr("waits for rank 0")));
}

}  // namespace
}  // namespace terrace
