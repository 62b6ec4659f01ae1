// Reductions of a stage's gradient between the ranks that share it: in the times of an order, and in the search for an order.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>

#include <terrace/core/base/error.h>
#include <terrace/parallel/pipeline/connect.h>
#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/search.h>
#include <terrace/parallel/plan/ranks_simulator.h>
#include <terrace/parallel/plan/stage_costs.h>
#include <terrace/tests/support/data_ranks.h>
#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace::pipeline {
namespace {

using u32 = std::uint32_t;

// A rank's program takes only the time that its layers compute; the test chooses how slow the links are.
struct Setting {
  Setting(u32 ranks, double bytes_per_second) : model(toy::make_model({.width = 64, .vocab = 64, .blocks = ranks * 4})) {
    profile.matmul_fp32 = 1e9;
    profile.memory_stream = profile.memory_copy = profile.disk_read = profile.disk_write = 1e15;
    profile.disk_latency_s = 0;
    profile.links.within = bytes_per_second;
  }
  [[nodiscard]] Pipeline pipeline(std::string_view order, u32 ranks, u32 micro_batches) const {
    auto schedule = write_order(order, {.ranks = ranks, .micro_batches = micro_batches});
    auto begins = balance(std::vector<double>(model.layers.size(), 1.0), schedule.placement.stages);
    return {std::move(schedule), std::move(begins)};
  }
  [[nodiscard]] StageCosts costs(const Pipeline& p) const { return stage_costs(p, model, options, profile); }
  [[nodiscard]] double makespan(const Pipeline& p) const { return simulate(p.schedule, costs(p)).makespan; }
  Model model;
  MachineProfile profile;
  StepMap::Options options{.shape = {{1, 16}, 8}};
};

// One rank's costs have the stages of all ranks.
TEST(PipelineReductions, EveryStageHasItsCostWhateverRankHoldsIt) {
  for (const std::string order : {"1f1b", "zb-v", "interleaved", "chimera", "dualpipe-v", "pipedream-2bw"})
    for (const u32 zero : {0U, 1U, 2U, 3U})
      for (const bool canonical : {false, true}) {
        SCOPED_TRACE(fmt::format("{}, ZeRO-{}{}", order, zero, canonical ? ", canonical" : ""));
        Setting setting(2, 1e9);
        setting.options.mesh.shard = 2;
        setting.options.data = {.zero = zero, .canonical = canonical};
        const auto p = setting.pipeline(order, 2, 8);
        const auto costs = setting.costs(p);
        ASSERT_EQ(p.schedule.placement.stages, costs.last_reduction.size());
        for (const auto& reduction : costs.last_reduction) EXPECT_GT(reduction.seconds, 0);
      }
}

TEST(PipelineReductions, TheLastOneEndsTheStep) {
  const StageCosts plain{.forward = {1}, .input = {1}, .weight = {1}};
  auto shared = plain;
  shared.last_reduction = {{5, 2}};
  for (const u32 p : {1U, 2U, 4U})
    for (const u32 m : {1U, 4U, 9U}) {
      const auto s = one_f_one_b({p, m});
      EXPECT_DOUBLE_EQ(simulate(s, shared).makespan, simulate(s, plain).makespan + 2) << p << " ranks, " << m;
    }
}

// F = 1, B = 2, and the reduction behind each backward takes r: the next backward starts max(F, r) later.
TEST(PipelineReductions, OfEachRoundHoldTheNextGradientUp) {
  for (const double r : {0.5, 1.0, 3.0}) {
    const StageCosts costs{
        .forward = {1}, .input = {1}, .weight = {1}, .reduction = {{r, r}}, .last_reduction = {{2 * r, 2 * r}}};
    EXPECT_DOUBLE_EQ(simulate(one_f_one_b({1, 6}), costs).makespan, 3 + 5 * (2 + std::max(1.0, r)) + 2 * r);
  }
}

// A rank's reductions run one after another; with little to compute, they take the whole step.
TEST(PipelineReductions, OfARankFollowOneAnother) {
  const StageCosts costs{.forward = {1e-3}, .input = {1e-3}, .weight = {1e-3}, .last_reduction = {{7, 7}}};
  EXPECT_NEAR(simulate(interleaved({2, 4, 3}), costs).makespan, 3 * 7, 0.1);  // three stages a rank
  EXPECT_NEAR(simulate(chimera({4, 4}), costs).makespan, 2 * 7, 0.1);         // one of either direction
}

// The bytes of a stage's gradient over the link: all of them at the end and, with canonical sums, half of them behind each
// round.
TEST(PipelineReductions, CostTheirBytes) {
  constexpr u32 kRanks = 4;
  Setting of(kRanks, 1e6);
  const auto p = of.pipeline("chimera", kRanks, 8);
  const StepMap map(of.model, of.options);
  for (const bool canonical : {false, true}) {
    of.options.data.canonical = canonical;
    const auto costs = of.costs(p);
    EXPECT_EQ(costs.folds_each(), canonical);
    for (u32 s = 0; s < kRanks; ++s) {
      double bytes = 0;
      for (auto l = p.begins[s]; l < p.begins[s + 1]; ++l)
        for (u32 g = 0; g < map.reduced_groups(l); ++g)
          bytes += static_cast<double>(map.options().recipe.chunk_bytes(ChunkKind::gradient, map.layout().chunk_elements()));
      EXPECT_DOUBLE_EQ(costs.last_reduction[s].seconds, bytes / 1e6);
      EXPECT_DOUBLE_EQ(costs.last_reduction[s].behind, bytes / 1e6);
      if (canonical) {
        EXPECT_DOUBLE_EQ(costs.reduction[s].seconds, bytes / 1e6 / 2);
      }
    }
  }
  of.options.mesh.shard = 2;
  of.options.data = {};
  const auto data = of.costs(of.pipeline("1f1b", kRanks, 8));
  EXPECT_LT(data.last_reduction[1].behind, data.last_reduction[1].seconds) << "layers are reduced beside the ones before them";
  EXPECT_TRUE(of.costs(of.pipeline("1f1b", kRanks, 8)).reduction.empty());
}

// If only computing and links take time, the search's makespan equals the time of all ranks' programs together. (In two
// directions it is a little less: ranks also wait for places whose last message has not left.)
TEST(PipelineReductions, AreThoseOfTheProgramsTimedTogether) {
  struct Case {
    const char* order;
    test::DataRanks data;
    double rate;
  };
  for (const auto& c : {Case{"chimera", {}, 1e9},
                        {"chimera", {}, 3e6},
                        {"chimera", {.canonical = true}, 1e9},
                        {"chimera", {.canonical = true}, 3e6},
                        {"1f1b", {.ranks = 2}, 1e9},
                        {"zb-h1", {.ranks = 2}, 1e9},
                        {"1f1b", {.ranks = 2}, 3e6},
                        {"interleaved", {.ranks = 2}, 3e6}}) {
    Setting of(4, c.rate);
    of.options.mesh = c.data.mesh();
    of.options.data = c.data.settings();
    // The data ranks of a stage are one node, so that messages between stages do not take the slow link.
    if (c.data.ranks > 1) of.profile.links.ranks_per_node = c.data.ranks, of.profile.links.between = 1e15;
    const auto p = of.pipeline(c.order, 4, 8);
    PlanRequest request{.shape = of.options.shape,
                        .budget = {kUnlimited, kUnlimited, 0},
                        .updates_before_use = false,
                        .prefetch_depth = 1,
                        .steps = 4,
                        .pipeline = p,
                        .mesh = c.data.mesh(4),
                        .data = of.options.data,
                        .gather_ahead = 0};
    std::vector<Plan> plans;
    for (u32 rank = 0; rank < 4; ++rank) {
      request.rank = rank * c.data.ranks;
      plans.push_back(plan(of.model, request, of.profile));
      ASSERT_TRUE(plans.back().fits);
      plans.back().capacity.device = 256 * kMiB;
    }
    const auto together = planning::simulate_ranks(
        plans, of.model, [&](const StepMap& map) { return std::make_unique<walk::ProfileCosts>(map, of.profile); }, of.profile,
        {});
    const double seconds = of.makespan(p), in_all = together.step_s.back();
    EXPECT_LE(seconds, in_all * (1 + 1e-9)) << c.order;
    // Beside the gradients the programs send their ranks' squares and losses: some hundred bytes.
    EXPECT_GE(seconds, in_all * (std::string(c.order) == "chimera" ? 0.93 : 0.997)) << fmt::format(
        "{}{}, {} data ranks, links of {} bytes/s", c.order, c.data.canonical ? ", canonical" : "", c.data.ranks, c.rate);
  }
}

// Stages of any costs: if the scheduler knows that gradients are added up in turn, the order that it writes can be executed so.
TEST(PipelineReductions, TheListSchedulerTakesGradientsInTurn) {
  const auto* const wanted = std::getenv("TERRACE_SEED");
  const std::uint64_t seed = wanted ? std::strtoull(wanted, nullptr, 10) : 7;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> seconds(0.1, 3);
  int out_of_turn = 0;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(fmt::format("seed {}, round {}", seed, round));
    const auto p = static_cast<u32>(2 + 2 * (random() % 3)), m = static_cast<u32>(2 + 2 * (random() % 6));
    StageCosts once{.forward = {}, .input = {}, .weight = {}};
    for (u32 stage = 0; stage < p; ++stage) {
      once.forward.push_back(seconds(random));
      once.input.push_back(seconds(random));
      once.weight.push_back(seconds(random));
    }
    ListOptions options{.micro_batches = m, .cap = m, .halves = round % 2 == 0, .costs = once};
    try {
      static_cast<void>(connect(best_list_schedule(both_directions(p), options), Reduced::each_round));
    } catch (const Error&) {
      ++out_of_turn;
    }
    options.costs.reduction = options.costs.last_reduction = {{0.1, 0.1}};
    const auto s = best_list_schedule(both_directions(p), options);
    EXPECT_NO_THROW(static_cast<void>(connect(s, Reduced::each_round)));
    EXPECT_NO_THROW(static_cast<void>(simulate(s, options.costs)));
  }
  EXPECT_GT(out_of_turn, 0) << "it need not know";
}

TEST(PipelineReductions, OutOfTurnAreRefused) {
  const auto s = parse_schedule(
      "pipeline 2 2 4\nplace 0 1\nplace 1 0\n"
      "rank F0.0 F0.2 B0.0 B0.2 F1.1 B1.1 F1.3 B1.3\n"
      "rank F1.0 B1.0 F1.2 B1.2 F0.1 F0.3 B0.1 B0.3\n");
  StageCosts costs;
  EXPECT_NO_THROW(simulate(s, costs));
  costs.reduction = costs.last_reduction = {{1, 1}};
  EXPECT_THAT(test::refusal_of([&] { simulate(s, costs); }), testing::HasSubstr("micro-batch by micro-batch"));
}

// Two directions halve the bubble but must add gradients up, which pays off only on fast links.
TEST(PipelineReductions, DecideWhetherTwoDirectionsAreWorthIt) {
  const auto two_directions = [](const Found& f) { return f.pipeline.schedule.placement.rank_of.size() == 2; };
  const auto found = [&](double bytes_per_second, bool canonical) {
    Setting of(4, bytes_per_second);
    of.options.data.canonical = canonical;
    return search(4, 4, layer_costs(of.model, of.options, of.profile), [&](const Pipeline& p) { return of.costs(p); });
  };
  for (const bool canonical : {false, true}) {
    const auto free = found(1e15, canonical), dear = found(1e5, canonical);
    const auto fastest_of = [&](const std::vector<Found>& all, bool two) {
      return std::ranges::find_if(all, [&](const Found& f) { return two_directions(f) == two; });
    };
    EXPECT_TRUE(std::ranges::any_of(free, [](const Found& f) { return f.name == "chimera"; }));
    const auto f1b = std::ranges::find(free, "1f1b", &Found::name);
    EXPECT_LT(fastest_of(free, true)->makespan, f1b->makespan);
    EXPECT_GT(fastest_of(dear, true)->makespan, fastest_of(dear, false)->makespan);
  }
}

TEST(PipelineReductions, OrdersThatARunCannotHaveAreLeftOut) {
  const Setting of(4, 1e9);
  const auto costs = layer_costs(of.model, of.options, of.profile);
  const auto refuse = [&](const auto& refused) {
    return [&](const Pipeline& p) {
      if (refused(p)) throw Error("not this one", ErrorKind::refused);
      return of.costs(p);
    };
  };
  const auto found = search(4, 7, costs, refuse([](const Pipeline& p) { return p.schedule.placement.stages == 8; }));
  for (const auto& f : found) {
    EXPECT_NE(f.pipeline.schedule.placement.stages, 8U);
    EXPECT_EQ(f.pipeline.schedule.placement.rank_of.size(), 1U) << f.name << ": 7 micro-batches are odd";
  }
  // If no order is left, the error is that of the first one: the usual orders come first.
  int number = 0;
  const auto none = [&](const Pipeline&) -> StageCosts { throw Error(std::to_string(++number), ErrorKind::refused); };
  const auto e = test::thrown_by([&] { search(4, 8, costs, none); });
  EXPECT_STREQ("1", e.what());
  EXPECT_GT(number, 10);
}

}  // namespace
}  // namespace terrace::pipeline
