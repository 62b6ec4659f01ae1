// The step programs of all ranks of models with skips, taken together: no cut, order or verdict makes them wait in a cycle.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>

#include <terrace/core/base/error.h>
#include <terrace/parallel/passes/check_messages.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace {
namespace {

// Cuts the embedding, `blocks` blocks and the head into stages at random: some stages have no layers, and skips begin and end
// anywhere.
pipeline::Pipeline cut_at_random(const pipeline::Schedule& schedule, std::int64_t blocks, std::mt19937_64& random) {
  std::vector<std::uint32_t> begins{0};
  for (std::uint32_t s = 1; s < schedule.placement.stages; ++s)
    begins.push_back(1 + static_cast<std::uint32_t>(random() % static_cast<std::uint64_t>(blocks + 1)));
  std::ranges::sort(begins);
  begins.push_back(static_cast<std::uint32_t>(blocks) + 2);
  return {schedule, begins};
}

// Proves all programs of all ranks together.
void expect_proved(const Model& model, PlanRequest request, std::uint32_t gather_ahead = 0) {
  std::vector<std::unique_ptr<StepMap>> maps;
  std::vector<planning::Programs> all;
  for (std::uint32_t r = 0; r < request.pipeline->schedule.placement.ranks; ++r) {
    maps.push_back(std::make_unique<StepMap>(model, StepMap::Options{.shape = request.shape,
                                                                     .mesh = request.mesh,
                                                                     .data = request.data,
                                                                     .pipeline = placement_of(*request.pipeline),
                                                                     .rank = r * request.mesh.shard}));
    all.push_back(planning::write_programs(*maps.back(), request, 0, gather_ahead));
  }
  for (const auto which : {&planning::Programs::first, &planning::Programs::steady, &planning::Programs::evaluate}) {
    std::vector<Program> same;
    for (const auto& of_rank : all) same.push_back(of_rank.*which);
    ASSERT_NO_THROW(passes::check_messages(same, model::Skips(model)));
  }
}

TEST(SkipPrograms, EveryOrderAndEveryCutIsProvedOnAllRanksTogether) {
  std::mt19937_64 random(7);
  int programs = 0;
  for (std::uint32_t p = 2; p <= 5; ++p)
    for (std::uint32_t m = 2; m <= 11; m += 3)
      for (const std::string order : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "chimera"}) {
        if ((order == "dualpipe-v" && m < 2 * p) || (order == "chimera" && (p % 2 != 0 || m % 2 != 0))) continue;
        const auto schedule = pipeline::write_order(order, {.ranks = p, .micro_batches = m, .chunks = 3});
        const auto blocks = static_cast<std::int64_t>(3 + random() % 20);
        const auto cut = cut_at_random(schedule, blocks, random);
        SCOPED_TRACE(fmt::format("{} on {} ranks, {} micro-batches, stages from {}", order, p, m, fmt::join(cut.begins, " ")));
        expect_proved(toy::make_model({.width = 16, .vocab = 33, .blocks = blocks, .tied = order != "chimera", .skips = true}),
                      {.shape = {{1, 4}, m}, .evaluate_batches = 1 + m * p % (2 * m - 1), .pipeline = cut, .mesh = {.pp = p}});
        ++programs;
      }
  EXPECT_GE(programs, 80);
}

// A rank that sends to one beyond its neighbour has sent more before an update's verdict than the neighbours have asked for;
// and ranks that need weights gathered behind the verdict wait for it.
TEST(SkipPrograms, AsynchronousOrdersAreProvedWithVerdictsAndShards) {
  std::mt19937_64 random(11);
  for (std::uint32_t p = 2; p <= 6; ++p)
    for (std::uint32_t m = 1; m <= 8; ++m)
      for (const std::uint32_t updates : {2U, 4U})
        for (const auto& [order, clipped] :
             {std::pair<std::string, bool>{"pipedream-2bw", true}, {"pipedream-2bw", false}, {"pipedream", false}})
          for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
            if (order == "pipedream-2bw" && m < p) continue;
            const auto schedule = pipeline::write_order(order, {.ranks = p, .micro_batches = m, .updates = updates});
            const auto blocks = static_cast<std::int64_t>(3 + random() % 20);
            const auto cut = cut_at_random(schedule, blocks, random);
            const auto ahead = static_cast<std::uint32_t>(random() % 3);
            SCOPED_TRACE(
                fmt::format("{}{} on {} ranks, {} updates of {} micro-batches, ZeRO-{}, gathered {} ahead, stages from {}",
                            order, clipped ? ", clipped" : "", p, updates, m, zero, ahead, fmt::join(cut.begins, " ")));
            expect_proved(toy::make_model({.width = 16, .vocab = 33, .blocks = blocks, .tied = false, .skips = true}),
                          {.shape = {{1, 4}, schedule.micro_batches},
                           .updates_before_use = clipped,
                           .pipeline = cut,
                           .mesh = {.pp = cut.schedule.placement.ranks, .shard = zero == 0 ? 1U : 2U},
                           .data = {.zero = zero}},
                          ahead);
          }
}

// If stages are cut evenly, a rank's skips lead to at most two other ranks. In two directions it has four lanes to each of
// them, as to each neighbour.
TEST(SkipPrograms, EvenStagesInTwoDirectionsHaveLanesForAllMessages) {
  std::uint32_t most = 0;
  for (const std::uint32_t p : {4U, 6U, 8U})
    for (std::int64_t blocks = p; blocks <= 40; ++blocks) {
      const auto schedule = pipeline::write_order("chimera", {.ranks = p, .micro_batches = p});
      const auto model = toy::make_model({.width = 16, .vocab = 33, .blocks = blocks, .tied = false, .skips = true});
      const std::vector<double> even(static_cast<std::size_t>(blocks) + 2, 1.0);
      const pipeline::Pipeline cut{schedule, pipeline::balance(even, p)};
      for (std::uint32_t r = 0; r < p; ++r) {
        SCOPED_TRACE(fmt::format("{} blocks on {} ranks, rank {}", blocks, p, r));
        ASSERT_NO_THROW(most = std::max(most, StepMap(model, {.shape = {{1, 4}, p},
                                                              .mesh = {.pp = cut.schedule.placement.ranks},
                                                              .pipeline = placement_of(cut),
                                                              .rank = r})
                                                  .places()
                                                  .messages()
                                                  .count()));
      }
    }
  EXPECT_EQ(most, 16U);
}

// Rank 0 sends the result that rank 2 reads through a skip only after it has a gradient that comes from rank 2.
TEST(SkipPrograms, ACircleThroughASkipIsRefused) {
  const std::uint32_t ranks = 3, m = 3;
  const auto model = toy::make_model({.width = 16, .vocab = 33, .blocks = 6, .skips = true});
  PlanRequest request{
      .shape = {{1, 4}, m},
      .pipeline = pipeline::Pipeline{pipeline::write_order("1f1b", {.ranks = ranks, .micro_batches = m}), {0, 3, 5, 8}},
      .mesh = {.pp = ranks}};
  std::vector<Program> programs;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const StepMap map(model,
                      {.shape = request.shape, .mesh = request.mesh, .pipeline = placement_of(*request.pipeline), .rank = r});
    programs.push_back(planning::write_programs(map, request, 0).first);
  }
  const model::Skips skips(model);
  ASSERT_NO_THROW(passes::check_messages(programs, skips));
  auto& actions = programs.front().actions;
  const auto first = [&](auto is) { return std::ranges::find_if(actions, is); };
  const auto sent = first([](const Action& a) {
    return a.op == Op::send && a.payload == Payload::activation && a.peer == 2 && a.micro_batch == 0;
  });
  ASSERT_NE(sent, actions.end());
  const auto late = *sent;
  actions.erase(sent);
  const auto backward = first([](const Action& a) { return a.op == Op::backward && a.micro_batch == 0; });
  ASSERT_NE(backward, actions.end());
  actions.insert(backward + 1, late);
  EXPECT_THROW(passes::check_messages(programs, skips), Error);
}

// Rank 0 sends its fifth micro-batch to rank 2 before it has the first update's gradient; rank 2 asks for it only after that
// update's verdict, behind which its weights are gathered and which all ranks must join.
TEST(SkipPrograms, ACircleThroughAVerdictIsRefused) {
  const std::uint32_t ranks = 3, m = 3;
  const auto model = toy::make_model({.width = 16, .vocab = 33, .blocks = 6, .tied = false, .skips = true});
  const auto schedule = pipeline::write_order("pipedream-2bw", {.ranks = ranks, .micro_batches = m, .updates = 2});
  PlanRequest request{.shape = {{1, 4}, schedule.micro_batches},
                      .pipeline = pipeline::Pipeline{schedule, {0, 3, 5, 8}},
                      .mesh = {.pp = ranks, .shard = 2},
                      .data = {.zero = 3}};
  std::vector<Program> programs;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const StepMap map(model, {.shape = request.shape,
                              .mesh = request.mesh,
                              .data = request.data,
                              .pipeline = placement_of(*request.pipeline),
                              .rank = r * request.mesh.shard});
    programs.push_back(planning::write_programs(map, request, 0).steady);
  }
  const model::Skips skips(model);
  ASSERT_NO_THROW(passes::check_messages(programs, skips));
  auto& actions = programs[2].actions;
  const auto of_fifth = [](const Action& a) { return a.op == Op::receive && a.peer == 0 && a.micro_batch == 4; };
  std::vector<Action> late;
  std::ranges::copy_if(actions, std::back_inserter(late), of_fifth);
  ASSERT_EQ(late.size(), 2U);
  std::erase_if(actions, of_fifth);
  const auto forward =
      std::ranges::find_if(actions, [](const Action& a) { return a.op == Op::forward && a.layer == 6 && a.micro_batch == 3; });
  ASSERT_NE(forward, actions.end());
  actions.insert(forward + 1, late.begin(), late.end());
  EXPECT_THAT(test::refusal_of([&] { passes::check_messages(programs, skips); }),
              testing::AllOf(testing::HasSubstr("send activation l2 m4 r2, waits for rank 2"),
                             testing::HasSubstr("forward l6 m3, waits for rank 0")));
}

}  // namespace
}  // namespace terrace
