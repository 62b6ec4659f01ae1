// The search for the fastest degrees of parallelism: which candidates it tries, and that it finds the same as planning each
// candidate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/plan/cluster.h>
#include <terrace/examples/terrace/plan/pipeline_setup.h>
#include <terrace/examples/terrace/plan/plan_estimate.h>
#include <terrace/examples/terrace/plan/plan_pipeline.h>
#include <terrace/examples/terrace/plan/plan_search.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/ranks/ranks.h>
#include <terrace/parallel/plan/stage_costs.h>

namespace terrace::cli {
namespace {

RunConfig small() {
  RunConfig c;
  c.model.family = lm::family_named("gpt2");
  c.model.layers = 2;
  c.model.hidden = 48;
  c.model.heads = 6;
  c.model.seq_len = 32;
  c.model.vocab = 260;
  c.train.batch_size = 2;
  c.run.threads = 1;
  c.plan.assumed_costs = true;
  return c;
}

// dp, pp, tp, sp, context ranks and their mode, zero
using Numbers = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, std::int64_t, std::string, std::int64_t>;
Numbers numbers_of(const RunConfig& c) {
  return {c.parallel.dp,  c.parallel.pp, c.parallel.tp,
          c.parallel.sp,  c.parallel.cp, c.parallel.cp == 1 ? "" : std::string(word_of(c.parallel.cp_mode)),
          c.parallel.zero};
}

// The expected values are counted by hand: six heads, twelve ranks on nodes of six, 2 · 2 + 2 layers, 24 sequences in
// micro-batches of two, and 32 positions, which 3 context ranks do not divide.
TEST(PlanSearch, TriesEveryLegalProductOnce) {
  const SearchSpace space{.ranks = 12, .ranks_per_node = 6, .sequences = 24};
  std::set<Numbers> expected;
  using Modes = std::vector<std::string>;
  for (const auto& [cp, modes] : {std::pair{1, Modes{""}}, {2, Modes{"ulysses", "ring"}}})
    for (const auto& [tp, sp] : {std::pair{1, false}, {2, true}, {3, false}, {6, false}})  // 64 tokens are not divided by 3
      for (const int pp : {1, 2, 3, 4, 6}) {
        if (6 / tp % cp != 0 || 12 / tp / cp % pp != 0) continue;
        const int dp = 12 / tp / cp / pp;
        if (12 % dp != 0) continue;
        for (const auto& mode : modes) {
          const bool divides = mode != "ulysses" || 6 / tp % cp == 0;
          for (int zero = 0; divides && zero <= (dp * cp > 1 ? 3 : 0); ++zero) expected.emplace(dp, pp, tp, sp, cp, mode, zero);
        }
      }
  std::set<Numbers> tried;
  for (const auto& c : candidates(small(), space)) {
    EXPECT_TRUE(tried.insert(numbers_of(c)).second) << flags_of(c) << " twice";
    EXPECT_EQ(12, c.parallel.dp * c.parallel.pp * c.parallel.tp * c.parallel.cp);
    EXPECT_EQ(24, c.parallel.dp * c.train.batch_size * c.train.grad_accumulation) << flags_of(c);
    EXPECT_NO_THROW(demand_degrees(c, 12)) << flags_of(c);
  }
  EXPECT_EQ(expected, tried);
}

// Eight tensor ranks can be a row, two squares or a cube, four a row or a square, if the micro-batch has enough sequences for
// the rows.
TEST(PlanSearch, TriesTensorRanksInEveryGrid) {
  auto given = small();
  given.model.heads = 8;
  given.model.hidden = 64;
  given.train.batch_size = 4;
  const SearchSpace space{.ranks = 8, .ranks_per_node = 8, .sequences = 16};
  std::set<std::string> tried;
  for (const auto& c : candidates(given, space))
    if (c.parallel.tp >= 4 && c.parallel.pp == 1 && c.parallel.cp == 1 && c.parallel.zero == 0)
      tried.insert(flags_of(c).substr(6, flags_of(c).find(" --zero") - 6));
  EXPECT_EQ((std::set<std::string>{" --tp 8 --sp", " --tp 8 --tp-mode 2.5d --tp-depth 2", " --tp 8 --tp-mode 3d",
                                   " --tp 4 --sp", " --tp 4 --tp-mode 2d"}),
            tried);
  given.train.batch_size = 2;
  for (const auto& c : candidates(given, space)) EXPECT_EQ(1, c.parallel.tp_depth) << flags_of(c);
}

// The given number of context ranks stays, and they count as ranks.
TEST(PlanSearch, ContextRanksAreOfTheRanks) {
  auto given = small();
  given.parallel.cp = 2;
  const auto all = candidates(given, {.ranks = 8, .ranks_per_node = 8, .sequences = 16});
  EXPECT_FALSE(all.empty());
  for (const auto& c : all) {
    EXPECT_EQ(8, c.parallel.ranks()) << flags_of(c);
    EXPECT_THAT(flags_of(c), testing::HasSubstr("--cp 2"));
  }
}

// The number of expert ranks divides both the experts and the ranks, which may be on several nodes; a given degree stays.
TEST(PlanSearch, TriesExpertRanks) {
  auto given = small();
  given.model.experts.count = 4;
  given.model.experts.chosen = 2;
  const SearchSpace space{.ranks = 8, .ranks_per_node = 2, .sequences = 32};
  std::set<std::string> tried;
  for (const auto& c : candidates(given, space)) {
    EXPECT_EQ(8, c.parallel.ranks()) << flags_of(c);
    EXPECT_EQ(32, c.parallel.dp * c.parallel.ep * c.train.batch_size * c.train.grad_accumulation) << flags_of(c);
    if (c.parallel.tp == 1 && c.parallel.cp == 1 && c.parallel.pp <= 2 && c.parallel.zero == 0)
      tried.insert(flags_of(c).substr(0, flags_of(c).find(" --zero")));
  }
  EXPECT_EQ(
      (std::set<std::string>{"--dp 8", "--dp 4 --pp 2 --schedule 1f1b", "--dp 4 --ep 2", "--dp 2 --pp 2 --schedule 1f1b --ep 2",
                             "--dp 2 --ep 4", "--dp 1 --pp 2 --schedule 1f1b --ep 4"}),
      tried);
  given.parallel.ep = 2;
  for (const auto& c : candidates(given, space)) EXPECT_EQ(2, c.parallel.ep) << flags_of(c);
}

// The seconds of a step that `terrace plan` gives for the candidate.
double step_of(const RunConfig& c, const MachineProfile& profile) {
  const auto model = lm::make_model(model_config(c));
  auto request = plan_request(c);
  set_pipeline(request, c, model, profile);
  if (c.parallel.pp == 1) {
    const auto p = make_plan(c, model, request, profile);
    return p.fits ? p.times.seconds : 0;
  }
  ThreadPool pool(1);
  try {
    const auto plans = plan_ranks(request, c, model, profile, pool);
    return step_of_pipeline(request, plans, model, profile).seconds;
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::does_not_fit, error.kind()) << error.what();
    return 0;
  }
}

TEST(PlanSearch, FindsWhatPlanningEachCandidateFinds) {
  const SearchSpace space{.ranks = 2, .ranks_per_node = 2, .sequences = 4};
  MachineProfile profile;
  profile.links = {.ranks_per_node = 2, .within = 1e9, .between = 1e8, .within_latency_s = 1e-5, .between_latency_s = 1e-4};
  auto given = small();
  given.memory.device_memory = "260KiB";
  const auto found = search_plans(given, space, profile);
  ASSERT_EQ(candidates(given, space).size(), found.size());
  std::size_t fitting = 0;
  for (const auto& f : found) {
    EXPECT_EQ(step_of(f.config, profile), f.step_s) << flags_of(f.config);
    fitting += f.step_s != 0 ? 1 : 0;
    EXPECT_EQ(f.step_s == 0, !f.refusal.empty()) << flags_of(f.config);
  }
  EXPECT_GT(fitting, 0U);
  EXPECT_LT(fitting, found.size()) << "nothing lacks memory, so nothing is shown of refusals";
  const auto is_better = [](const FoundPlan& a, const FoundPlan& b) {
    if ((a.step_s == 0) != (b.step_s == 0)) return b.step_s == 0;
    return a.step_s != 0 ? a.step_s < b.step_s : a.missing_bytes < b.missing_bytes;
  };
  EXPECT_TRUE(std::ranges::is_sorted(found, is_better));

  given.run.threads = 4;
  const auto together = search_plans(given, space, profile);
  ASSERT_EQ(found.size(), together.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(numbers_of(found[i].config), numbers_of(together[i].config));
    EXPECT_EQ(found[i].step_s, together[i].step_s);
    EXPECT_EQ(found[i].peak, together[i].peak);
  }
}

MachineProfile two_nodes() {
  MachineProfile profile;
  profile.links = {.ranks_per_node = 2, .within = 1e9, .between = 1e8, .within_latency_s = 1e-5, .between_latency_s = 1e-4};
  return profile;
}

TEST(PlanSearch, PlansSoManyOfTheBestByEstimate) {
  const SearchSpace space{.ranks = 4, .ranks_per_node = 4, .sequences = 16};
  const auto found = search_plans(small(), space, two_nodes(), {.plans = 7});
  double latest = 0, earliest = 1e30;
  std::int64_t planned = 0;
  for (const auto& f : found) {
    const bool estimated = f.known == Known::estimated;
    planned += estimated ? 0 : 1;
    (estimated ? earliest : latest) = estimated ? std::min(earliest, f.estimate_s) : std::max(latest, f.estimate_s);
  }
  EXPECT_EQ(7, planned);
  EXPECT_LE(latest, 1.15 * earliest);
}

// The estimate once assumed that the whole step hides updates on the host. They run beside the first forward only: with slower
// memory, the estimate must grow as the plan does.
TEST(PlanEstimate, CountsUpdatesThatNothingHides) {
  const auto cluster = load_cluster(TERRACE_SOURCE_FOLDER "/examples/clusters/h100.toml");
  auto c = small();
  c.model.layers = 4;
  c.model.hidden = 4096;
  c.model.heads = 32;
  c.model.seq_len = 2048;
  c.parallel.dp = 4;
  c.parallel.pp = 2;
  c.train.grad_accumulation = 4;
  c.plan.update = Tier::host;
  c = on_cluster(c, cluster, {.nodes = 1});
  auto fast = rank_profile(cluster, {.nodes = 1}), slow = fast;
  slow.memory_stream /= 8;
  const double estimated = estimate_plan(c, slow).step_s - estimate_plan(c, fast).step_s,
               planned = step_of(c, slow) - step_of(c, fast);
  EXPECT_GT(planned, 0);
  EXPECT_NEAR(estimated, planned, 0.2 * planned);
}

// Only the search moves this clock. Candidates that are not planned when the time is over are estimated, and none is planned
// twice.
TEST(PlanSearch, EndsAtItsDeadline) {
  const SearchSpace space{.ranks = 2, .ranks_per_node = 2, .sequences = 4};
  const auto all = candidates(small(), space).size();
  std::size_t before = 0;
  for (const double seconds : {10.0, 1e9}) {
    double clock = 0;
    const auto found = search_plans(small(), space, two_nodes(), {.seconds = seconds, .now = [&] { return clock += 1; }});
    ASSERT_EQ(all, found.size());
    const auto planned =
        static_cast<std::size_t>(std::ranges::count_if(found, [](const FoundPlan& f) { return f.known != Known::estimated; }));
    EXPECT_GE(planned, before) << seconds;
    if (seconds < 1e9) {
      EXPECT_LT(planned, all) << "more time must plan more";
    }
    before = planned;
  }
  EXPECT_EQ(all, before);
}

// The schedule's time once left out what tensor ranks exchange between layers, and was half the time of all ranks together.
TEST(PlanPipeline, TheScheduleAloneWaitsForTensorRanks) {
  auto c = small();
  c.model.heads = 8;
  c.model.hidden = 64;
  c.parallel.tp = 4;
  c.parallel.sp = true;
  c.parallel.pp = 2;
  c.parallel.dp = 1;
  c.train.grad_accumulation = 16;
  const auto model = lm::make_model(model_config(c));
  auto request = plan_request(c);
  set_pipeline(request, c, model, two_nodes());
  ThreadPool pool(1);
  const auto plans = plan_ranks(request, c, model, two_nodes(), pool);
  const auto together = step_of_pipeline(request, plans, model, two_nodes());
  ASSERT_TRUE(together.together);
  const auto costs = pipeline::stage_costs(*request.pipeline, model, plans.front().map, two_nodes());
  EXPECT_GT(pipeline::simulate(request.pipeline->schedule, costs).makespan, 0.9 * together.seconds);
}

TEST(PlanSearch, NothingThatFitsEndsWithTheNearest) {
  auto given = small();
  given.memory.device_memory = given.memory.host_memory = "64KiB";
  try {
    plan_search(given, {.ranks = 4, .ranks_per_node = 4, .sequences = 16}, {}, 5);
    FAIL() << "64 KiB are enough";
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::does_not_fit, error.kind());
    EXPECT_THAT(error.what(), testing::HasSubstr("none of the"));
    EXPECT_THAT(error.what(), testing::HasSubstr("--dp"));
  }
  try {
    plan_search(small(), {.ranks = 7, .ranks_per_node = 7, .sequences = 16}, {}, 5);
    FAIL() << "7 ranks divide neither the sequences nor anything of the model";
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::refused, error.kind());
    EXPECT_THAT(error.what(), testing::HasSubstr("no product"));
  }
}

}  // namespace
}  // namespace terrace::cli
