// terrace plan --search: flags become the library's candidates and back, and a line of the search is what `terrace plan` finds
// with its flags.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/plan/cluster.h>
#include <terrace/examples/terrace/plan/pipeline_setup.h>
#include <terrace/examples/terrace/plan/plan_search.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/ranks/ranks.h>
#include <terrace/parallel/plan/search/estimate.h>
#include <terrace/tests/support/thrown_error.h>

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

std::vector<RunConfig> configs(const RunConfig& given, const RanksOfSearch& ranks) {
  std::vector<RunConfig> all;
  for (const auto& candidate : candidates(searched_run(given, ranks, {}).space)) all.push_back(config_of(given, candidate));
  return all;
}

// The flags of a candidate are those of a run with its degrees, and no two candidates have the same flags.
TEST(PlanSearch, EveryCandidateHasFlagsOfItsOwn) {
  auto given = small();
  given.model.heads = 8;
  given.model.hidden = 64;
  given.train.batch_size = 4;
  std::set<std::string> flags, modes;
  for (const auto& c : configs(given, {.ranks = 8, .ranks_per_node = 8, .sequences = 32})) {
    EXPECT_TRUE(flags.insert(flags_of(c)).second) << flags_of(c) << " twice";
    EXPECT_EQ(8, c.parallel.ranks()) << flags_of(c);
    EXPECT_EQ(32, c.parallel.dp * c.train.batch_size * c.train.grad_accumulation) << flags_of(c);
    EXPECT_NO_THROW(demand_degrees(c, 8)) << flags_of(c);
    if (c.parallel.tp * c.parallel.cp == 8 && c.parallel.zero == 0)
      modes.insert(flags_of(c).substr(6, flags_of(c).find(" --zero") - 6));
  }
  const std::set<std::string> expected{" --tp 8 --sp",
                                       " --tp 8 --tp-mode 2.5d --tp-depth 2",
                                       " --tp 8 --tp-mode 3d",
                                       " --tp 4 --sp --cp 2",
                                       " --tp 4 --sp --cp 2 --cp-mode ring",
                                       " --tp 4 --tp-mode 2d --cp 2",
                                       " --tp 4 --tp-mode 2d --cp 2 --cp-mode ring",
                                       " --tp 2 --sp --cp 4",
                                       " --tp 2 --sp --cp 4 --cp-mode ring",
                                       " --tp 2 --sp --cp 4 --cp-mode both --cp-ring 2",
                                       " --cp 8",
                                       " --cp 8 --cp-mode ring",
                                       " --cp 8 --cp-mode both --cp-ring 2",
                                       " --cp 8 --cp-mode both --cp-ring 4"};
  EXPECT_EQ(expected, modes);
}

// A given number of context or expert ranks stays.
TEST(PlanSearch, GivenContextAndExpertRanksStay) {
  auto given = small();
  given.parallel.cp = 2;
  given.parallel.cp_mode = ContextMode::ring;
  for (const auto& c : configs(given, {.ranks = 8, .ranks_per_node = 8, .sequences = 16}))
    EXPECT_THAT(flags_of(c), testing::HasSubstr("--cp 2 --cp-mode ring"));
  given.parallel.cp = 1;
  given.parallel.ep = 2;
  given.model.experts = {.count = 4};
  const auto all = configs(given, {.ranks = 8, .ranks_per_node = 2, .sequences = 32});
  EXPECT_FALSE(all.empty());
  for (const auto& c : all) EXPECT_THAT(flags_of(c), testing::HasSubstr("--ep 2"));
}

// The seconds of a step that `terrace plan` gives for the candidate.
double step_of(const RunConfig& c, const MachineProfile& profile) {
  const auto model = lm::make_model(model_config(c));
  auto request = plan_request(c);
  cli::set_pipeline(request, c, model, profile);
  if (c.parallel.pp == 1) {
    const auto p = make_plan(c, model, request, profile);
    return p.fits ? p.times.seconds : 0;
  }
  ThreadPool pool(1);
  try {
    const auto plans = plans_of_ranks(request, c, model, profile, pool).plans;
    return planning::step_of_pipeline(request, plans, model, profile).seconds;
  } catch (const Error& error) {
    EXPECT_EQ(ErrorKind::does_not_fit, error.kind()) << error.what();
    return 0;
  }
}

TEST(PlanSearch, FindsWhatPlanningEachCandidateFinds) {
  const RanksOfSearch ranks{.ranks = 2, .ranks_per_node = 2, .sequences = 4};
  MachineProfile profile;
  profile.links = {.ranks_per_node = 2, .within = 1e9, .between = 1e8, .within_latency_s = 1e-5, .between_latency_s = 1e-4};
  auto given = small();
  given.memory.device_memory = "260KiB";
  ThreadPool pool(2);
  const auto found = search_plans(searched_run(given, ranks, profile), profile, pool);
  ASSERT_EQ(configs(given, ranks).size(), found.size());
  const auto fitting = std::ranges::count_if(found, [](const FoundPlan& f) { return f.step_s != 0; });
  EXPECT_GT(fitting, 0);
  EXPECT_LT(fitting, std::ssize(found)) << "nothing lacks memory, so nothing is shown of refusals";
  for (const auto& f : found) {
    const auto config = config_of(given, f.candidate);
    EXPECT_EQ(step_of(config, profile), f.step_s) << flags_of(config);
  }
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
  const auto run = searched_run(c, {.ranks = 8, .ranks_per_node = 8, .sequences = 32}, fast);
  const auto all = candidates(run.space);
  const auto candidate = *std::ranges::find(all, flags_of(c), [&](const Candidate& of) { return flags_of(config_of(c, of)); });
  const double estimated =
                   planning::estimate_plan(run, candidate, slow).step_s - planning::estimate_plan(run, candidate, fast).step_s,
               planned = step_of(c, slow) - step_of(c, fast);
  EXPECT_GT(planned, 0);
  EXPECT_NEAR(estimated, planned, 0.2 * planned);
}

TEST(PlanSearch, NothingThatFitsEndsWithTheNearest) {
  auto given = small();
  given.memory.device_memory = given.memory.host_memory = "64KiB";
  EXPECT_THAT(test::error_of(ErrorKind::does_not_fit,
                             [&] { plan_search(given, {.ranks = 4, .ranks_per_node = 4, .sequences = 16}, {}, 5); }),
              testing::AllOf(testing::HasSubstr("none of the"), testing::HasSubstr("--dp")));
  EXPECT_THAT(test::refusal_of([&] { plan_search(small(), {.ranks = 7, .ranks_per_node = 7, .sequences = 16}, {}, 5); }),
              testing::HasSubstr("no product"));
}

}  // namespace
}  // namespace terrace::cli
