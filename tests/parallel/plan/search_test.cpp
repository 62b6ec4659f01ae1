// The search over degrees of parallelism as a program without flags uses it: it finds what planning each candidate finds.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/pipeline/simulate.h>
#include <terrace/parallel/plan/pipeline_plans.h>
#include <terrace/parallel/plan/search/layer_estimates.h>
#include <terrace/parallel/plan/search/search.h>
#include <terrace/parallel/plan/stage_costs.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace {
namespace {

MachineProfile two_ranks_a_node() {
  MachineProfile profile;
  profile.links = {.ranks_per_node = 2, .within = 1e9, .between = 1e8, .within_latency_s = 1e-5, .between_latency_s = 1e-4};
  return profile;
}

layers::Transformer small() {
  return {.layers = 2, .hidden = 48, .heads = 6, .kv_heads = 6, .ffn = 192, .seq_len = 32, .vocab = 260};
}

SearchedRun run_of(const layers::Transformer& transformer, std::uint32_t ranks, std::int64_t sequences, Budget budget = {}) {
  auto run = searched_run(transformer, {.shape = {{2, 32}, 1}, .budget = budget, .steps = 4}, two_ranks_a_node());
  run.space.ranks = run.space.ranks_per_node = ranks;
  run.space.sequences = sequences;
  return run;
}

// A chain of layers of one's own, which has no parts for tensor ranks: ranks can only be data and pipeline ranks.
constexpr toy::Sizes kToy{.width = 32, .vocab = 64, .blocks = 4};
SearchedRun toy_run(std::uint32_t ranks, std::int64_t sequences) {
  SearchedRun run{.space = {.ranks = ranks,
                            .ranks_per_node = ranks,
                            .sequences = sequences,
                            .micro_batch = {2, 16},
                            .model = {.layers = kToy.blocks + 2}},
                  .request = {.steps = 4}};
  run.model = [](const ModelRank& place, const PlanRequest&) {
    auto model = toy::make_model(kToy);
    model.place = place;
    return model;
  };
  run.period = 1;
  return run;
}

std::string text_of(const Candidate& c) {
  return fmt::format("{}, ring {}, zero {}, {} micro-batches", to_string(c.place.mesh), c.place.ring, c.zero, c.micro_batches);
}

// The seconds of a step from the plan of a request that is written here; 0: it does not fit.
double planned_s(const SearchedRun& run, const Candidate& c) {
  ThreadPool pool(1);
  auto request = run.request;
  request.shape = {{run.space.micro_batch.batch, run.space.micro_batch.seq / c.degrees.cp}, c.micro_batches};
  request.mesh = c.place.mesh;
  request.data.zero = c.zero;
  const auto profile = two_ranks_a_node();
  const auto model = run.model(c.place, request);
  if (c.degrees.pp == 1) {
    const auto alone = plan(model, request, profile);
    return alone.fits ? alone.times.seconds : 0;
  }
  auto schedule = pipeline::write_order("1f1b", {.ranks = request.mesh.pp, .micro_batches = c.micro_batches});
  auto stages = planning::balanced_stages(request, model, schedule, profile);
  planning::set_pipeline(request, {schedule, stages});
  const auto plans = planning::plan_ranks(request, model, profile, pool);
  return std::ranges::all_of(plans, &Plan::fits) ? planning::step_of_pipeline(request, plans, model, profile).seconds : 0;
}

std::vector<FoundPlan> search_with(const SearchedRun& run, const SearchLimits& limits = {}, int threads = 1) {
  ThreadPool pool(threads);
  return search_plans(run, two_ranks_a_node(), pool, limits);
}

TEST(SearchPlans, FindsWhatPlanningEachCandidateFinds) {
  const auto run = run_of(small(), 2, 4, {.device = 260 * kKiB});
  const auto found = search_with(run);
  ASSERT_EQ(candidates(run.space).size(), found.size());
  std::size_t fitting = 0;
  for (const auto& f : found) {
    EXPECT_EQ(planned_s(run, f.candidate), f.step_s) << text_of(f.candidate);
    EXPECT_EQ(f.step_s == 0, !f.refusal.empty()) << text_of(f.candidate);
    fitting += f.step_s != 0 ? 1 : 0;
  }
  EXPECT_GT(fitting, 0U);
  EXPECT_LT(fitting, found.size()) << "nothing lacks memory, so nothing is shown of refusals";
  const auto is_better = [](const FoundPlan& a, const FoundPlan& b) {
    if ((a.step_s == 0) != (b.step_s == 0)) return b.step_s == 0;
    return a.step_s != 0 ? a.step_s < b.step_s : a.missing_bytes < b.missing_bytes;
  };
  EXPECT_TRUE(std::ranges::is_sorted(found, is_better));
  const auto together = search_with(run, {}, 4);
  ASSERT_EQ(found.size(), together.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(text_of(found[i].candidate), text_of(together[i].candidate));
    EXPECT_EQ(found[i].step_s, together[i].step_s);
    EXPECT_EQ(found[i].peak, together[i].peak);
  }
}

TEST(SearchPlans, SearchesAChainOfOnesOwnLayers) {
  const auto run = toy_run(4, 16);
  const auto found = search_with(run);
  ASSERT_EQ(candidates(run.space).size(), found.size());
  for (const auto& f : found) {
    EXPECT_EQ(Known::simulated, f.known) << text_of(f.candidate);
    EXPECT_EQ(planned_s(run, f.candidate), f.step_s) << text_of(f.candidate);
    EXPECT_EQ(1, f.candidate.degrees.tp * f.candidate.degrees.cp);
  }
}

// The embedder's guide shows these lines.
TEST(SearchPlans, ItsBestCandidateIsAPlanThatFits) {
  const layers::Transformer transformer{
      .layers = 2, .hidden = 64, .heads = 8, .kv_heads = 8, .ffn = 192, .seq_len = 32, .vocab = 256};
  const PlanRequest request{.shape = {{2, 32}, 1}, .budget = {512 * kKiB, 4 * kMiB}, .steps = 100};
  const MachineProfile profile;  // or one that was measured, with the links between ranks
  auto run = searched_run(transformer, request, profile);
  run.space.ranks = run.space.ranks_per_node = 4;
  run.space.sequences = 8;  // of a step, on all ranks
  ThreadPool pool(2);
  const auto found = search_plans(run, profile, pool, {.wanted = 1});
  const auto& best = found.front();  // best.candidate.degrees, best.step_s
  ASSERT_EQ(Known::simulated, best.known) << best.refusal;
  EXPECT_EQ(4U, best.candidate.place.mesh.size());
  EXPECT_LE(best.peak[Tier::device], request.budget.device);
  EXPECT_GT(best.step_s, 0);
}

// What a search for the best one does not plan is not faster.
TEST(SearchPlans, FindsTheSameBestWithAndWithoutLimits) {
  for (const auto& run : {run_of(small(), 2, 4), toy_run(4, 16)}) {
    const auto all = search_with(run);
    const auto best = search_with(run, {.wanted = 1});
    ASSERT_EQ(all.size(), best.size());
    EXPECT_EQ(text_of(all.front().candidate), text_of(best.front().candidate));
    EXPECT_EQ(all.front().step_s, best.front().step_s);
    for (const auto& f : best) {
      const auto same = std::ranges::find(all, text_of(f.candidate), [](const FoundPlan& p) { return text_of(p.candidate); });
      ASSERT_NE(all.end(), same);
      if (f.known == Known::slower) {
        EXPECT_GE(same->step_s, best.front().step_s) << text_of(f.candidate);
      } else {
        EXPECT_EQ(same->step_s, f.step_s) << text_of(f.candidate);
      }
    }
  }
}

TEST(SearchPlans, PlansSoManyOfTheBestByEstimate) {
  const auto found = search_with(run_of(small(), 4, 16), {.plans = 7});
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

// Only the search moves this clock. Candidates that are not planned when the time is over are estimated, and none is planned
// twice.
TEST(SearchPlans, EndsAtItsDeadline) {
  const auto run = run_of(small(), 2, 4);
  const auto all = candidates(run.space).size();
  std::size_t before = 0;
  for (const double seconds : {10.0, 1e9}) {
    double clock = 0;
    const auto found = search_with(run, {.seconds = seconds, .now = [&] { return clock += 1; }});
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

// A pipeline whose schedule is left to the search has the one that search_schedule() finds.
TEST(SearchPlans, SearchesTheScheduleThatIsLeftOpen) {
  auto run = toy_run(2, 16);
  run.pipelines.schedule = [](const Candidate&) { return std::nullopt; };
  std::size_t pipelines = 0;
  for (const auto& f : search_with(run)) {
    if (f.candidate.degrees.pp == 1) continue;
    ++pipelines;
    ThreadPool pool(1);
    auto request = request_of(run, f.candidate);
    const auto model = run.model(f.candidate.place, request);
    const auto schedule = planning::search_schedule(request, model, two_ranks_a_node(), pool);
    EXPECT_EQ(planning::step_of_pipeline(request, schedule.plans, model, two_ranks_a_node()).seconds, f.step_s)
        << schedule.name;
  }
  EXPECT_GT(pipelines, 0U);
}

// The seconds and contents of a layer are the same whether all layers are looked at or one period of them. Every second block
// has a window, so a period is two blocks.
TEST(LayerEstimates, OfAPeriodAreThoseOfAllLayers) {
  auto transformer = small();
  transformer.layers = 5;
  transformer.window = layers::Windows({8, 0});
  for (auto run : {run_of(transformer, 1, 4), toy_run(1, 4)}) {
    const auto candidate = candidates(run.space).front();
    run.request.chunk_elements = 4096;  // otherwise a larger model has larger chunks
    const auto few = planning::estimate_layers(run, candidate, two_ranks_a_node());
    run.period = 0;
    const auto all = planning::estimate_layers(run, candidate, two_ranks_a_node());
    ASSERT_EQ(all.layers.size(), few.layers.size());
    for (std::size_t l = 0; l < all.layers.size(); ++l) {
      EXPECT_GT(all.layers[l].backward, 0) << "layer " << l;
      for (const auto number :
           {&planning::LayerEstimate::forward, &planning::LayerEstimate::backward, &planning::LayerEstimate::content})
        EXPECT_EQ(all.layers[l].*number, few.layers[l].*number) << "layer " << l;
    }
  }
}

// The schedule's time once left out what tensor ranks exchange between layers, and was half the time of all ranks together.
TEST(PipelinePlans, TheScheduleAloneWaitsForTensorRanks) {
  auto transformer = small();
  transformer.hidden = 64;
  transformer.heads = transformer.kv_heads = 8;
  transformer.ffn = 256;
  const Mesh mesh{.pp = 2, .part = 4};
  transformer.place = {.mesh = mesh, .sequence = true};
  const auto model = layers::make_transformer(transformer);
  PlanRequest request{.shape = {{2, 32}, 16}, .steps = 100, .mesh = mesh};
  const auto profile = two_ranks_a_node();
  auto schedule = pipeline::write_order("1f1b", {.ranks = 2, .micro_batches = 16});
  auto stages = planning::balanced_stages(request, model, schedule, profile);
  planning::set_pipeline(request, {schedule, stages});
  ThreadPool pool(1);
  const auto plans = planning::plan_ranks(request, model, profile, pool);
  const auto together = planning::step_of_pipeline(request, plans, model, profile);
  ASSERT_TRUE(together.together);
  const auto costs = pipeline::stage_costs(*request.pipeline, model, plans.front().map, profile);
  EXPECT_GT(pipeline::simulate(request.pipeline->schedule, costs).makespan, 0.9 * together.seconds);
}

}  // namespace
}  // namespace terrace
